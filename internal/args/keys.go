package args

// KeysOf returns the positions of the first and last key argument of a command, as COMMAND
// INFO has them: 0 for none, -1 for the last argument.
func KeysOf(name string) (first, last int64) {
	switch name {
	case "MGET", "EXISTS", "DEL", "UNLINK":
		return 1, -1
	case "GET", "SET", "STRLEN", "TYPE", "TTL", "PTTL", "EXPIRE", "PEXPIRE", "CASCADE.PUT", "CASCADE.ALIAS":
		return 1, 1
	}
	return 0, 0
}
