package config

import (
	"errors"
	"fmt"
	"reflect"
)

// Reload decides what SIGHUP may do: it returns the configuration to run with
// from now on and the paths of the keys that differ. When a key that cannot
// change differs, nothing may: merged is old and the error, which matches
// ErrImmutable, names each such key. Reload is pure; both values must be valid.
func Reload(old, new Config) (merged Config, changed []string, err error) {
	var refused []error
	for _, k := range allKeys {
		was, is := k.field(&old), k.field(&new)
		if reflect.DeepEqual(was.Interface(), is.Interface()) || was.Kind() == reflect.Slice && was.Len()+is.Len() == 0 {
			continue
		}
		changed = append(changed, k.Path)
		if !k.Reload {
			refused = append(refused, fmt.Errorf("%w: %s from %s to %s: restart the rank to change it, or undo the edit; nothing was reloaded",
				ErrImmutable, k.Path, k.TOML(&old), k.TOML(&new)))
		}
	}
	if len(refused) > 0 {
		return old, nil, errors.Join(refused...)
	}
	return new, changed, nil
}
