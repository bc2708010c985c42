package config

import (
	"errors"
	"fmt"
)

// Errors of this package. Test with errors.Is.
var (
	ErrUnknownKey = errors.New("config: unknown key")
	ErrValue      = errors.New("config: bad value")
	ErrSyntax     = errors.New("config: not valid TOML")
	ErrImmutable  = errors.New("config: key cannot change while the rank runs")
)

// KeyError is a name that means nothing. It matches ErrUnknownKey.
type KeyError struct {
	Origin  string // "file:line" or "flag"
	Key     string // as written
	Nearest string // the valid name closest to it
}

// Error names the place, the key and the nearest valid one.
func (e *KeyError) Error() string {
	return fmt.Sprintf("%s: unknown key %q: did you mean %q? Correct or remove it; \"cascade config show\" lists every key",
		e.Origin, e.Key, e.Nearest)
}

// Is reports whether target is ErrUnknownKey.
func (e *KeyError) Is(target error) bool { return target == ErrUnknownKey }

// ValueError is a key with a value it cannot have. It matches ErrValue.
type ValueError struct {
	Origin  string // where the value was set
	Key     string
	Value   string // as written, or as in effect
	Problem string
	Remedy  string
}

// Error names the place, the key, its value, the problem and the remedy.
func (e *ValueError) Error() string {
	s := fmt.Sprintf("%s: %s = %s: %s", e.Origin, e.Key, e.Value, e.Problem)
	if e.Remedy != "" {
		s += "; " + e.Remedy
	}
	return s
}

// Is reports whether target is ErrValue.
func (e *ValueError) Is(target error) bool { return target == ErrValue }

// SyntaxError is a file that is not TOML. It matches ErrSyntax.
type SyntaxError struct {
	File         string
	Line, Column int // from 1; 0 when unknown
	Problem      string
}

// Error names the place and the problem.
func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Problem)
}

// Is reports whether target is ErrSyntax.
func (e *SyntaxError) Is(target error) bool { return target == ErrSyntax }
