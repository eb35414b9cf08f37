-- Fencing tokens of all consumers; they only grow, even after a consumer or feed was dropped.
if object_id(N'<<schema_in_text>>.[fencing_token]') is null
    create sequence <<schema>>.[fencing_token] as bigint start with 1 increment by 1 <<cache>>;
