"""Studies of single papers. Each study is a command of its own; nothing imports a study."""
