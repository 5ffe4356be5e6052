"""What one paper does. Each study is a command of its own; nothing imports a study."""
