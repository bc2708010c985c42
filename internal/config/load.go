package config

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// SystemDir is where a site keeps its configuration.
const SystemDir = "/etc/cascade"

// FileEnv names the variable that stands for --config.
const FileEnv = EnvPrefix + "CONFIG"

// Precedence is one line about where values come from, for --help.
const Precedence = "built-in < " + SystemDir + "/cascade.toml < " + SystemDir +
	"/conf.d/*.toml < --config or " + FileEnv + " < " + EnvPrefix + "* < flags"

// Built is the origin of a value that nothing has set.
const Built = "built-in"

// Sources are the places Load reads. The zero value is the built-in
// configuration.
type Sources struct {
	SystemDir string            // "" for none; a missing file in it is no error
	File      string            // as of --config; "" for the one of FileEnv, if any
	Env       []string          // as of os.Environ; also for variables in paths
	Flags     map[string]string // key path to text
}

// Loaded is a valid configuration that remembers where each value came from.
type Loaded struct {
	Config

	// Files are the files that were read, in order.
	Files []string
	// Warnings are sentences about what was ignored: variables that set no key.
	Warnings []string

	origins map[string]string
}

// Origin distinguishes where the value of a key came from.
func (l *Loaded) Origin(path string) string {
	if o, ok := l.origins[path]; ok {
		return o
	}
	return Built
}

// Refuse makes the error for a key whose value a part of the program cannot use
// although Validate let it pass. It matches ErrValue and names the place where
// the value was set.
func (l *Loaded) Refuse(path, problem, remedy string) error {
	k, known := Lookup(path)
	value := ""
	if known {
		value = k.TOML(&l.Config)
	}
	return &ValueError{Origin: l.Origin(path), Key: path, Value: value, Problem: problem, Remedy: remedy}
}

// Load reads all sources in order of precedence, expands paths and validates. An error lists every problem found, each with its place and
// remedy; it matches ErrUnknownKey, ErrValue, ErrSyntax or an error of os.
func Load(s Sources) (*Loaded, error) {
	l := &Loaded{Config: Default(), origins: map[string]string{}}
	files, err := s.files()
	if err != nil {
		return nil, err
	}
	var problems []error
	for _, name := range files {
		document, err := readFile(name)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		l.Files = append(l.Files, name)
		problems = append(problems, l.apply(name, document))
	}
	problems = append(problems, l.applyEnv(s.Env), l.applyFlags(s.Flags))
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	if err := l.expandPaths(s.Env); err != nil {
		return nil, err
	}
	l.expand()
	if err := l.located(l.Validate()); err != nil {
		return nil, err
	}
	l.Warnings = ignored(s.Env)
	return l, nil
}

// FromTexts is Load of what Texts says of another program's configuration. Keys that this
// program does not know are left out.
func FromTexts(texts map[string]string) (*Loaded, error) {
	known := map[string]string{}
	for _, k := range allKeys {
		if text, ok := texts[k.Path]; ok {
			known[k.Path] = text
		}
	}
	return Load(Sources{Flags: known})
}

// files lists the files to read, lowest precedence first.
func (s Sources) files() ([]string, error) {
	var names []string
	if s.SystemDir != "" {
		main := filepath.Join(s.SystemDir, "cascade.toml")
		if _, err := os.Stat(main); err == nil {
			names = append(names, main)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("config: %w; make it readable or remove it", err)
		}
		parts, err := filepath.Glob(filepath.Join(s.SystemDir, "conf.d", "*.toml"))
		if err != nil {
			return nil, fmt.Errorf("config: %s: %w", s.SystemDir, err)
		}
		slices.Sort(parts)
		names = append(names, parts...)
	}
	file := s.File
	if file == "" {
		file = lookupEnv(s.Env, FileEnv)
	}
	if file == "" {
		return names, nil
	}
	expanded, err := expandPath(file, s.Env)
	if err != nil {
		return nil, &ValueError{Origin: "--config or " + FileEnv, Key: "the file", Value: strconv.Quote(file), Problem: err.Error()}
	}
	return append(names, expanded), nil
}

// readFile reads at most a little more than MaxFile, so that naming a device
// or a huge file by mistake ends in an error.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("config: %w; check the path given by --config or %s", err, FileEnv)
	}
	defer f.Close()
	document, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("config: %s: %w", name, err)
	}
	return document, nil
}

func lookupEnv(env []string, name string) string {
	value := ""
	for _, v := range env {
		if text, ok := strings.CutPrefix(v, name+"="); ok {
			value = text
		}
	}
	return value
}

// applyEnv overlays the variables that set keys; see ignored for the others.
func (l *Loaded) applyEnv(env []string) error {
	byName := map[string]Key{}
	for _, k := range allKeys {
		byName[k.Env()] = k
	}
	var problems []error
	for _, v := range env {
		name, text, _ := strings.Cut(v, "=")
		if key, known := byName[name]; known {
			problems = append(problems, l.setText(key, text, "environment "+name))
		}
	}
	return errors.Join(problems...)
}

func (l *Loaded) applyFlags(flags map[string]string) error {
	var problems []error
	for _, path := range slices.Sorted(maps.Keys(flags)) {
		key, known := Lookup(path)
		if !known {
			problems = append(problems, &KeyError{Origin: "flag", Key: path, Nearest: nearest(path, paths())})
			continue
		}
		problems = append(problems, l.setText(key, flags[path], "flag --"+key.Flag()))
	}
	return errors.Join(problems...)
}

func (l *Loaded) setText(key Key, text, origin string) error {
	if err := key.set(&l.Config, text); err != nil {
		return &ValueError{Origin: origin, Key: key.Path, Value: strconv.Quote(text), Problem: err.Error()}
	}
	l.origins[key.Path] = origin
	return nil
}

// expand replaces placeholders in paths. {socket} distinguishes ranks that were
// given nothing but a socket of their own.
func (l *Loaded) expand() {
	r := []string{"{uid}", strconv.Itoa(os.Getuid()), "{rank}", strconv.Itoa(l.Rank), "{job}", l.Job}
	l.Socket = strings.NewReplacer(r...).Replace(l.Socket)
	l.Admin.Listen = strings.NewReplacer(r...).Replace(l.Admin.Listen)
	place, err := filepath.Abs(l.Socket)
	if err != nil {
		place = l.Socket
	}
	if l.Socket == "" {
		place = l.Listen
	}
	sum := fnv.New32a()
	sum.Write([]byte(place))
	r = append(r, "{socket}", fmt.Sprintf("%08x", sum.Sum32()))
	l.Shm.Path = strings.NewReplacer(r...).Replace(l.Shm.Path)
	l.Lustre.Dir = strings.NewReplacer(r[:6]...).Replace(l.Lustre.Dir)
	l.Lustre.Index = strings.NewReplacer(r[:6]...).Replace(l.Lustre.Index)
	l.NVMe.Paths = slices.Clone(l.NVMe.Paths)
	for i, path := range l.NVMe.Paths {
		l.NVMe.Paths[i] = strings.NewReplacer(r[:6]...).Replace(path)
	}
}

// located adds origins to the value errors in err.
func (l *Loaded) located(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			if v, ok := e.(*ValueError); ok {
				v.Origin = l.Origin(v.Key)
			}
		}
	}
	return err
}
