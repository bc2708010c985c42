package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
)

// expandPaths replaces a leading ~ and $VARIABLE or ${VARIABLE} in every key that
// names a path, from whatever source it has its value.
func (l *Loaded) expandPaths(env []string) error {
	var problems []error
	for _, k := range allKeys {
		if !k.path {
			continue
		}
		for _, value := range stringsOf(k.field(&l.Config)) {
			expanded, err := expandPath(value.String(), env)
			if err != nil {
				problems = append(problems, l.Refuse(k.Path, err.Error(), ""))
				continue
			}
			value.SetString(expanded)
		}
	}
	return errors.Join(problems...)
}

// stringsOf are the strings of a field that is one, or a list of them.
func stringsOf(field reflect.Value) (all []reflect.Value) {
	if field.Kind() == reflect.String {
		return []reflect.Value{field}
	}
	for i := range field.Len() {
		all = append(all, field.Index(i))
	}
	return all
}

// absolute reports the path of something that the rank makes unless it is
// absolute: it would lie wherever the rank is started.
func (v *validator) absolute(key, path string) {
	remedy := "write an absolute path"
	if abs, err := filepath.Abs(path); err == nil {
		remedy += ", such as " + abs
	}
	v.check(filepath.IsAbs(path), key, "not an absolute path: what it names would depend on where the rank is started", remedy)
	v.check(!strings.ContainsRune(path, 0), key, "contains a zero byte", "remove it")
}

var variable = regexp.MustCompile(`\$(?:\$|[A-Za-z_][A-Za-z0-9_]*|\{[^}]*\}?|)`)

// expandPath replaces a leading ~ by HOME, variables by their values in env, and
// $$ by a dollar sign. A variable that is not set, or empty, is an error: a path
// without it would lie somewhere else.
func expandPath(path string, env []string) (string, error) {
	if path == "~" || strings.HasPrefix(path, "~/") {
		path = "${HOME}" + path[1:]
	} else if strings.HasPrefix(path, "~") {
		return "", errors.New("the home directory of another user is not looked up; write the path in full")
	}
	var problems []error
	expanded := variable.ReplaceAllStringFunc(path, func(match string) string {
		if match == "$$" {
			return "$"
		}
		name := strings.TrimPrefix(match, "$")
		if strings.HasPrefix(name, "{") {
			name = strings.TrimSuffix(name[1:], "}")
		}
		if "$"+name != match && "${"+name+"}" != match || !variableName.MatchString(name) {
			problems = append(problems, fmt.Errorf("%q is no variable; write ${NAME}, or $$ for a dollar sign", match))
			return ""
		}
		value := lookupEnv(env, name)
		if value == "" {
			problems = append(problems, fmt.Errorf("the variable %s is not set, or empty; set it, or write the path in full", name))
		}
		return value
	})
	return expanded, errors.Join(problems...)
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
