package layout

import (
	"slices"
	"strconv"
	"strings"
)

// Parse reads the options of an "lfs setstripe" line, without command and file
// name, as lfs does: abbreviated long options, sizes below 4096 in KiB, and
// components that take over count, size and pool from the one before. The
// layout is valid. Errors are *OptionError values.
func Parse(line string) (Layout, error) {
	words, err := split(line)
	if err != nil {
		return Layout{}, err
	}
	p := parser{words: words}
	for len(p.words) > 0 {
		if err := p.option(); err != nil {
			return Layout{}, err
		}
	}
	if p.options == 0 {
		return Layout{}, &OptionError{Problem: "no options", Remedy: "write some, such as -c 4 -S 4m, or leave setstripe empty"}
	}
	if p.ended {
		if err := p.complete(); err != nil {
			return Layout{}, err
		}
	}
	l := Layout{append(p.done, p.part)}
	if err := l.Validate(); err != nil {
		return Layout{}, err
	}
	return l, nil
}

// split cuts a line into words at blanks; quotes keep a word together.
func split(line string) ([]string, error) {
	var words []string
	for rest := strings.TrimSpace(line); rest != ""; rest = strings.TrimSpace(rest) {
		var word string
		if q := rest[0]; q == '\'' || q == '"' {
			end := strings.IndexByte(rest[1:], q)
			if end < 0 {
				return nil, &OptionError{Problem: "a quote is not closed", Remedy: "remove it, or close it"}
			}
			word, rest = rest[1:1+end], rest[2+end:]
		} else if at := strings.IndexAny(rest, " \t\r\n"); at >= 0 {
			word, rest = rest[:at], rest[at:]
		} else {
			word, rest = rest, ""
		}
		words = append(words, word)
	}
	return words, nil
}

// parser walks the words of a line, as getopt_long does.
type parser struct {
	words   []string
	options int
	done    []Component // those with their options complete
	part    Component   // what options apply to
	ended   bool        // part has its end
	zero    string      // -c or -S was given as 0 for part
}

// longOptions maps the long options of lfs setstripe to their letters. Those
// with a letter that take cannot handle are explained by refusals.
var longOptions = map[string]string{
	"stripe-count": "-c", "stripe_count": "-c", "mdt-count": "-c", "overstripe-count": "-C", "mdt-overcount": "-C",
	"stripe-size": "-S", "stripe_size": "-S", "pool": "-p", "component-end": "-E", "comp-end": "-E", "layout": "-L",
	"stripe-index": "-i", "stripe_index": "-i", "ost": "-o", "ost-list": "-o", "ost_list": "-o", "mirror-count": "-N",
	"ext-size": "-z", "extension-size": "-z", "yaml": "-y", "copy": "--copy", "foreign": "--foreign", "ec": "--ec",
	"ec-stripe-count": "--ec", "ec-expert": "--ec", "delete": "-d", "mode": "--mode", "xattr": "--foreign", "flags": "--foreign",
	"component-add": "--component-add", "comp-add": "--component-add", "component-del": "--component-del", "comp-del": "--component-del",
	"component-set": "--component-set", "comp-set": "--component-set", "component-flags": "--component-flags", "comp-flags": "--component-flags",
	"component-id": "-I", "comp-id": "-I",
}

// refusals has why an option that lfs has is not for segments.
var refusals = map[string][2]string{
	"-i":              {"every segment would begin on one OST, which fills first and takes all of them with it when it is lost", "leave it out: the metadata server balances load and space, as man lfs-setstripe strongly recommends"},
	"-o":              {"every segment would lie on the same OSTs, full or down as they may be", "use -p with a pool of these OSTs"},
	"-N":              {"each byte would be written twice, and a write makes the other mirrors stale until lfs mirror resync", "leave it out: a block that is lost is computed again"},
	"-z":              {"components that extend themselves are not asked for by CASCADE", "set such a default on the directory with lfs, and leave the striping keys empty"},
	"--ec":            {"parity is stale after each write", "leave it out: a block that is lost is computed again"},
	"-y":              {"files of layouts are not read here", "write the options themselves"},
	"--copy":          {"layouts are not copied here", "write the options themselves; lfs getstripe shows those of a file"},
	"--foreign":       {"a foreign layout has no stripes", "leave it out"},
	"-d":              {"removes a directory's default", "leave the striping keys empty, and run lfs setstripe -d DIRECTORY yourself"},
	"--mode":          {"segments have mode 0600", "leave it out"},
	"--component-add": {"changes files that exist", "write all components with -E"}, "--component-del": {"changes files that exist", "leave it out"},
	"--component-set": {"changes files that exist", "leave it out"}, "--component-flags": {"flags are for mirrors", "leave it out"},
	"-I": {"changes files that exist", "leave it out"},
}

const known = "-c, -C, -S, -p, -E and -L are known, with their long names"

// option takes the next option with its value.
func (p *parser) option() error {
	word := p.words[0]
	p.words = p.words[1:]
	p.options++
	name, value, attached := word, "", false
	switch {
	case strings.HasPrefix(word, "--") && len(word) > 2:
		name, value, attached = strings.Cut(word[2:], "=")
		letter, err := long(name)
		if err != nil {
			return err
		}
		name = letter
	case strings.HasPrefix(word, "-") && len(word) > 1 && word != "--":
		name, value, attached = word[:2], word[2:], len(word) > 2
	default:
		return &OptionError{Option: word, Problem: "not an option", Remedy: "write options only, without \"lfs setstripe\" and without a file name"}
	}
	if name == "-i" && p.anyIndex(value, attached) {
		return nil
	}
	if why, refused := refusals[name]; refused {
		if len(p.words) > 0 && !attached && !strings.HasPrefix(p.words[0], "-") {
			value = p.words[0]
		}
		return &OptionError{Option: name, Value: value, Problem: why[0], Remedy: why[1]}
	}
	if !slices.Contains([]string{"-c", "-C", "-S", "-p", "-E", "-L"}, name) {
		return &OptionError{Option: name, Problem: "not an option of lfs setstripe for new files", Remedy: known}
	}
	if !attached {
		if len(p.words) == 0 {
			return &OptionError{Option: name, Problem: "its value is missing", Remedy: "write it behind the option"}
		}
		value, p.words = p.words[0], p.words[1:]
	}
	return p.take(name, value)
}

// anyIndex consumes the -1 of -i -1, which lfs recommends and is the default.
func (p *parser) anyIndex(value string, attached bool) bool {
	if attached {
		return value == "-1"
	}
	if len(p.words) > 0 && p.words[0] == "-1" {
		p.words = p.words[1:]
		return true
	}
	return false
}

// long finds a long option by its name or the beginning of it, provided that
// all options that begin so mean the same.
func long(name string) (letter string, err error) {
	if l, exact := longOptions[name]; exact {
		return l, nil
	}
	for full, l := range longOptions {
		if !strings.HasPrefix(full, name) || l == letter {
			continue
		}
		if letter != "" {
			return "", &OptionError{Option: "--" + name, Problem: "may mean several options", Remedy: "write it out"}
		}
		letter = l
	}
	if letter == "" {
		return "", &OptionError{Option: "--" + name, Problem: "not an option of lfs setstripe for new files", Remedy: known}
	}
	return letter, nil
}

// take applies one option to the current component.
func (p *parser) take(name, value string) error {
	bad := func(problem, remedy string) error { return &OptionError{name, value, problem, remedy} }
	switch name {
	case "-c", "-C":
		n, ok := parseCount(value)
		if !ok {
			return bad("not a number", "write the number of stripes, -1 for all OSTs, 0 for the file system's default")
		}
		p.part.Count = n
		p.note("-c", n == 0)
		p.part.Overstripe = p.part.Overstripe || name == "-C"
		return p.part.checkCount(name)
	case "-S":
		size, ok := parseSize(value)
		if !ok {
			return bad("not a size", "write a number with a unit, such as 4m")
		}
		p.part.Size = size
		p.note(name, size == 0)
		if size%SizeUnit != 0 {
			return p.part.checkSize()
		}
	case "-p":
		p.part.Pool = poolName(value)
	case "-L":
		if value != "mdt" && value != "raid0" {
			return bad("no layout that lfs knows", "write raid0, the default, or mdt")
		}
		if value == "mdt" { // raid0 behind it takes nothing back
			p.part.OnMDT, p.part.Size = true, 0
		}
	case "-E":
		return p.end(value)
	}
	return nil
}

// parseCount reads a decimal, octal or hexadecimal number, as C does.
func parseCount(text string) (int, bool) {
	digits, rest := leadingNumber(strings.TrimPrefix(text, "-"))
	n, err := strconv.ParseInt(digits, 0, 32)
	if strings.HasPrefix(text, "-") {
		n = -n
	}
	return int(n), err == nil && rest == ""
}

// end begins a component. Options before the first -E belong to the first one.
func (p *parser) end(value string) error {
	end, ok := EOF, true
	if value != "-1" && value != "eof" && value != "EOF" {
		end, ok = parseSize(value)
	}
	if !ok || end == 0 {
		return &OptionError{"-E", value, "not the end of a component", "write a size such as 64M, or eof"}
	}
	if p.ended {
		if err := p.complete(); err != nil {
			return err
		}
		p.done = append(p.done, p.part)
		p.part = p.part.passedOn()
	}
	p.part.End, p.ended = end, true
	return nil
}

// note remembers an option that was set to 0, until it is set to more.
func (p *parser) note(name string, zero bool) {
	if zero {
		p.zero = name
	} else if p.zero == name {
		p.zero = ""
	}
}

// complete judges a component that gets no more options. Only in a plain layout
// does lfs take 0 for the default.
func (p *parser) complete() error {
	if p.zero != "" && !p.part.OnMDT {
		return &OptionError{p.zero, "0", "nothing that a component can have", "write a number, or leave " + p.zero + " out of all components up to here"}
	}
	if p.part.OnMDT && p.part.Size == p.part.End {
		p.part.Size = 0
	}
	p.zero = ""
	return nil
}

// poolName drops the name of the file system, as lfs does, and the words that
// mean the directory's pool.
func poolName(value string) string {
	if _, name, found := strings.Cut(value, "."); found {
		value = name
	}
	if value == noInherit || value == noInherit15 {
		return ""
	}
	return value
}
