-- What an older feed lacks. A lock on the whole feed, of a drain or purge, would stall those who only look for news.
alter table <<schema>>.[feed:<<name>>] set (lock_escalation = disable);
