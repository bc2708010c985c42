package config

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// EnvPrefix starts the name of every variable that sets a key.
const EnvPrefix = "CASCADE_"

// Key describes one value of Config.
type Key struct {
	Path   string // "shm.bytes"
	Help   string // one line
	Reload bool   // SIGHUP may change it

	index []int // of the field, for reflect
	path  bool  // a path, which Load expands
}

// Env is the variable that sets the key: "CASCADE_SHM_BYTES".
func (k Key) Env() string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(k.Path, ".", "_"))
}

// Flag is the flag that sets the key, without dashes: "shm-bytes".
func (k Key) Flag() string {
	return strings.NewReplacer(".", "-", "_", "-").Replace(k.Path)
}

// Type is the word for its values in --help: "size", "duration", "string",
// "int", "float", "bool" or "list".
func (k Key) Type() string {
	field := k.field(&Config{})
	switch field.Kind() {
	case reflect.Slice:
		return "list"
	case reflect.Float64:
		return "float"
	}
	if t, ok := field.Interface().(interface{ Type() string }); ok {
		return t.Type()
	}
	return field.Kind().String()
}

// Text is the key's value in c as variables and flags have it.
func (k Key) Text(c *Config) string {
	switch v := k.field(c).Interface().(type) {
	case []int:
		words := make([]string, len(v))
		for i, n := range v {
			words[i] = strconv.Itoa(n)
		}
		return strings.Join(words, ",")
	case []string:
		return strings.Join(v, ",")
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	default:
		return fmt.Sprint(v)
	}
}

// TOML is the key's value in c as a file has it.
func (k Key) TOML(c *Config) string {
	text := k.Text(c)
	switch field := k.field(c); field.Kind() {
	case reflect.Slice:
		if words, ok := field.Interface().([]string); ok {
			quoted := make([]string, len(words))
			for i, w := range words {
				quoted[i] = quote(w)
			}
			text = strings.Join(quoted, ",")
		}
		return "[" + strings.ReplaceAll(text, ",", ", ") + "]"
	case reflect.Float64:
		if !strings.ContainsAny(text, ".e") {
			text += ".0"
		}
		return text
	case reflect.Int, reflect.Bool:
		return text
	default:
		return quote(text)
	}
}

// Texts is every key's value, by its path, as variables and flags have it.
func (c *Config) Texts() map[string]string {
	texts := make(map[string]string, len(allKeys))
	for _, k := range allKeys {
		texts[k.Path] = k.Text(c)
	}
	return texts
}

// Value is the key's value in c, for JSON.
func (k Key) Value(c *Config) any { return k.field(c).Interface() }

// Keys lists every key in the order of the struct.
func Keys() []Key { return slices.Clone(allKeys) }

// Lookup finds a key by its path.
func Lookup(path string) (Key, bool) {
	i := slices.IndexFunc(allKeys, func(k Key) bool { return k.Path == path })
	if i < 0 {
		return Key{}, false
	}
	return allKeys[i], true
}

var allKeys = keysOf(reflect.TypeFor[Config](), "", nil)

func keysOf(t reflect.Type, prefix string, index []int) []Key {
	var keys []Key
	for i := range t.NumField() {
		f := t.Field(i)
		path, at := prefix+f.Tag.Get("toml"), append(slices.Clone(index), i)
		if f.Type.Kind() == reflect.Struct {
			keys = append(keys, keysOf(f.Type, path+".", at)...)
			continue
		}
		keys = append(keys, Key{Path: path, Help: f.Tag.Get("help"), Reload: f.Tag.Get("reload") == "yes", index: at, path: f.Tag.Get("path") == "yes"})
	}
	return keys
}

// sections are the tables a file may open.
func sections() []string {
	var names []string
	for _, k := range allKeys {
		if at := strings.LastIndexByte(k.Path, '.'); at >= 0 && !slices.Contains(names, k.Path[:at]) {
			names = append(names, k.Path[:at])
		}
	}
	return names
}

func (k Key) field(c *Config) reflect.Value {
	return reflect.ValueOf(c).Elem().FieldByIndex(k.index)
}

// set reads text into the key's field of c; on error c is unchanged.
func (k Key) set(c *Config, text string) error {
	field := k.field(c)
	if u, ok := field.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	switch p := field.Addr().Interface().(type) {
	case *string:
		*p = text
	case *int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return errors.New("not a whole number")
		}
		*p = n
	case *float64:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return errors.New("not a number")
		}
		*p = n
	case *bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return errors.New("neither true nor false")
		}
		*p = b
	case *[]string:
		*p = words(text)
	case *[]int:
		var list []int
		for _, word := range words(text) {
			n, err := strconv.Atoi(word)
			if err != nil {
				return fmt.Errorf("%q is not a whole number", word)
			}
			list = append(list, n)
		}
		*p = list
	default:
		return fmt.Errorf("values of type %s cannot be read", field.Type())
	}
	return nil
}

// words are the values of a list, which has commas between them.
func words(text string) (list []string) {
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word != "" {
			list = append(list, word)
		}
	}
	return list
}

// quote writes s as a basic TOML string.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
