"""The stack's settings: `joiner:<key>` of `Pulumi.<stack>.yaml`, typed and checked.

* `forms`      the types of settings: each pattern with its description for users
* `settings`   every setting with its type, default and description
* `values`     the text of a setting → its value
* `checks`     the errors that need more than one setting, a file or a program to detect
* `reading`    the settings of the running stack
* `table`      docs/reference/settings.md

The program checks all settings before it creates anything. The error lists every invalid key
with its value and what is allowed.
"""
