select raise(abort, <<message>>) where not (<<fits>>);
