package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// MaxFile bounds a configuration file, in bytes.
const MaxFile = 1 << 20

// apply overlays one TOML document on l. It reports every unknown key and bad
// value, joined; values of such keys are not applied.
func (l *Loaded) apply(name string, document []byte) error {
	if len(document) > MaxFile {
		return &SyntaxError{File: name, Problem: fmt.Sprintf("%d bytes are too many for a configuration file: is this the right file?", len(document))}
	}
	// The library's decoder knows TOML's rules about doubled keys and tables,
	// its parser knows lines; a document has to pass the first before the
	// second walks it.
	var ignored map[string]any
	if err := toml.Unmarshal(document, &ignored); err != nil {
		return syntaxError(name, err)
	}
	w := walker{loaded: l, file: name}
	w.parser.Reset(document)
	for w.parser.NextExpression() {
		w.expression(w.parser.Expression())
	}
	if err := w.parser.Error(); err != nil {
		return syntaxError(name, err)
	}
	return errors.Join(w.problems...)
}

func syntaxError(file string, err error) error {
	e := &SyntaxError{File: file, Problem: strings.TrimPrefix(err.Error(), "toml: ")}
	var located *toml.DecodeError
	if errors.As(err, &located) {
		e.Line, e.Column = located.Position()
		if key := located.Key(); len(key) > 0 && !strings.Contains(e.Problem, key[len(key)-1]) {
			e.Problem += " (at " + strings.Join(key, ".") + ")"
		}
	}
	return e
}

// walker goes through the expressions of one document.
type walker struct {
	loaded   *Loaded
	file     string
	parser   unstable.Parser
	table    string // the open table with a trailing dot, "" at the top
	skip     bool   // the open table is unknown and was reported
	problems []error
}

func (w *walker) expression(n *unstable.Node) {
	switch n.Kind {
	case unstable.Table, unstable.ArrayTable:
		w.open(n)
	case unstable.KeyValue:
		if !w.skip {
			w.keyValue(w.table, n)
		}
	}
}

func (w *walker) open(n *unstable.Node) {
	path, origin := w.key(n)
	known := slices.Contains(sections(), path)
	w.table, w.skip = path+".", !known || n.Kind == unstable.ArrayTable
	switch {
	case !known:
		w.problems = append(w.problems, &KeyError{Origin: origin, Key: path, Nearest: nearest(path, sections())})
	case w.skip:
		w.problems = append(w.problems, &ValueError{Origin: origin, Key: path, Value: "[[" + path + "]]",
			Problem: "a list of tables", Remedy: "write [" + path + "]"})
	}
}

func (w *walker) keyValue(prefix string, n *unstable.Node) {
	path, origin := w.key(n)
	path = prefix + path
	value := n.Value()
	if value.Kind == unstable.InlineTable && slices.Contains(sections(), path) {
		for it := value.Children(); it.Next(); {
			w.keyValue(path+".", it.Node())
		}
		return
	}
	key, known := Lookup(path)
	if !known {
		w.problems = append(w.problems, &KeyError{Origin: origin, Key: path, Nearest: nearest(path, paths())})
		return
	}
	text, err := scalar(value, key.field(&w.loaded.Config).Type())
	if err == nil {
		err = key.set(&w.loaded.Config, text)
	}
	if err != nil {
		w.problems = append(w.problems, &ValueError{Origin: origin, Key: path, Value: w.source(value), Problem: err.Error()})
		return
	}
	w.loaded.origins[path] = origin
}

// key returns the dotted key of an expression and its "file:line".
func (w *walker) key(n *unstable.Node) (path, origin string) {
	var parts []string
	line := 0
	for it := n.Key(); it.Next(); {
		if line == 0 {
			line = w.parser.Shape(it.Node().Raw).Start.Line
		}
		parts = append(parts, string(it.Node().Data))
	}
	return strings.Join(parts, "."), fmt.Sprintf("%s:%d", w.file, line)
}

// source is a value as the file has it, for messages.
func (w *walker) source(n *unstable.Node) string {
	if n.Kind == unstable.String {
		return quote(string(n.Data))
	}
	if len(n.Data) > 0 {
		return string(n.Data)
	}
	return strings.ToLower(n.Kind.String())
}

// scalar returns a TOML value as the text that Key.set reads, provided that
// its kind suits a field of type t.
func scalar(n *unstable.Node, t reflect.Type) (string, error) {
	var want string
	var suits bool
	text := t.Implements(reflect.TypeFor[interface{ MarshalText() ([]byte, error) }]())
	switch {
	case text:
		want = "a string with a unit or a number"
		suits = n.Kind == unstable.String || n.Kind == unstable.Integer || n.Kind == unstable.Float
	case t.Kind() == reflect.String:
		want, suits = "a string", n.Kind == unstable.String
	case t.Kind() == reflect.Int:
		want, suits = "an integer", n.Kind == unstable.Integer
	case t.Kind() == reflect.Float64:
		want, suits = "a number", n.Kind == unstable.Float || n.Kind == unstable.Integer
	case t.Kind() == reflect.Bool:
		want, suits = "true or false", n.Kind == unstable.Bool
	case t.Kind() == reflect.Slice:
		return list(n, t.Elem().Kind() == reflect.String)
	}
	if !suits {
		return "", fmt.Errorf("a value of kind %s where %s belongs", strings.ToLower(n.Kind.String()), want)
	}
	if n.Kind == unstable.Integer || n.Kind == unstable.Float {
		return strings.ReplaceAll(string(n.Data), "_", ""), nil
	}
	return string(n.Data), nil
}

// list is a list of integers or of strings. A string with a comma would be two.
func list(n *unstable.Node, text bool) (string, error) {
	want, kind, one := "integers", unstable.Integer, "an integer"
	if text {
		want, kind, one = "strings", unstable.String, "a string"
	}
	if n.Kind != unstable.Array {
		return "", fmt.Errorf("a value of kind %s where a list of %s belongs", strings.ToLower(n.Kind.String()), want)
	}
	var words []string
	for it := n.Children(); it.Next(); {
		switch k := it.Node().Kind; {
		case k == unstable.Comment:
			continue
		case k != kind:
			return "", fmt.Errorf("a list with a value of kind %s where %s belongs", strings.ToLower(k.String()), one)
		case text && strings.ContainsRune(string(it.Node().Data), ','):
			return "", fmt.Errorf("%q has a comma, which separates the values of a list", it.Node().Data)
		}
		words = append(words, strings.ReplaceAll(string(it.Node().Data), "_", ""))
	}
	return strings.Join(words, ","), nil
}

func paths() []string {
	names := make([]string, len(allKeys))
	for i, k := range allKeys {
		names[i] = k.Path
	}
	return names
}
