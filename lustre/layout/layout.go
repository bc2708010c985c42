package layout

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// EOF is the End of a component that goes on to the end of the file.
const EOF int64 = -1

// AllOSTs is the Count of a stripe on each OST.
const AllOSTs = -1

// Bounds of Lustre's, sizes in bytes.
const (
	SizeUnit    = 64 << 10          // sizes and ends are multiples of it
	MaxSize     = 1<<32 - SizeUnit  // of a stripe
	MaxCount    = 2000              // stripes of a component
	MaxPool     = 15                // bytes of a pool's name
	MaxOnMDT    = 1 << 30           // bytes that lfs puts on a metadata server
	leastCount  = -32               // that many stripes on each OST
	poolIgnore  = "ignore"          // no pool, whatever the directory's default
	noInherit   = "inherit"         // as the directory's default
	noInherit15 = "none"            // what inherit was called before 2.15
	maxParts    = 512               // components that anybody can want
	maxEnd      = 1<<63 - 1 - 1<<16 // of a component
)

// Component is what is asked for one part of a file. The zero value of a field
// leaves it to the directory or the file system.
type Component struct {
	End        int64  // first byte behind it, or EOF; 0 in a plain layout
	Count      int    // stripes; AllOSTs; with Overstripe -2 to -32: so many on each OST
	Size       int64  // bytes of a stripe
	Pool       string // its OSTs; "ignore": not the pool that the directory has
	Overstripe bool   // an OST may have several stripes
	OnMDT      bool   // on the metadata server rather than on OSTs
}

// Layout is what is asked for a file: a single component with End 0, called
// plain, or components in ascending order. The zero value asks for nothing, and
// the file system's default stays.
type Layout struct{ Components []Component }

// Plain is the layout of a file with one kind of stripes.
func Plain(count int, size int64, pool string) Layout {
	return Layout{[]Component{{Count: count, Size: size, Pool: pool}}}
}

// IsZero reports whether nothing is asked for.
func (l Layout) IsZero() bool { return len(l.Components) == 0 }

// Composite reports whether the layout has components, if only one.
func (l Layout) Composite() bool { return len(l.Components) > 0 && l.Components[0].End != 0 }

// Options writes l as options of "lfs setstripe"; Parse reads them back.
func (l Layout) Options() string {
	if l.IsZero() {
		return ""
	}
	var words []string
	inherited := Component{}
	for _, c := range l.Components {
		words = append(words, c.options(inherited)...)
		inherited = c.passedOn()
	}
	if len(words) == 0 {
		return "-c 0" // everything is explicitly the default
	}
	return strings.Join(words, " ")
}

// options are the words for c behind a component that leaves it inherited.
func (c Component) options(inherited Component) []string {
	var words []string
	switch c.End {
	case 0:
	case EOF:
		words = append(words, "-E", "eof")
	default:
		words = append(words, "-E", formatSize(c.End))
	}
	if c.OnMDT {
		return append(words, "-L", "mdt")
	}
	switch {
	case c.Overstripe:
		words = append(words, "-C", strconv.Itoa(c.Count))
	case c.Count != 0 || inherited.Count != 0:
		words = append(words, "-c", strconv.Itoa(c.Count))
	}
	if c.Size != 0 || inherited.Size != 0 {
		words = append(words, "-S", formatSize(c.Size))
	}
	switch {
	case c.Pool != "":
		words = append(words, "-p", c.Pool)
	case inherited.Pool != "":
		words = append(words, "-p", noInherit)
	}
	return words
}

// passedOn is what lfs takes over into the component behind c.
func (c Component) passedOn() Component {
	return Component{Count: c.Count, Size: c.Size, Pool: c.Pool}
}

// String is Options, or what no options mean.
func (l Layout) String() string {
	if l.IsZero() {
		return "the file system's default"
	}
	return l.Options()
}

// Command is the line that gives path the layout, as a person would type it;
// "" when nothing is asked for.
func (l Layout) Command(path string) string {
	if l.IsZero() {
		return ""
	}
	return "lfs setstripe " + l.Options() + " " + shellQuote(path)
}

// Validate reports everything in l that Lustre or lfs would refuse, and a last
// component that is not the end of the file: *OptionError values, joined.
func (l Layout) Validate() error {
	var v problems
	if len(l.Components) > maxParts {
		v.add("-E", strconv.Itoa(len(l.Components)), "more components than anybody needs", fmt.Sprintf("use at most %d", maxParts))
	}
	start := int64(0)
	for i, c := range l.Components {
		c.check(&v, start)
		last := i == len(l.Components)-1
		switch {
		case c.End == 0 && len(l.Components) > 1:
			v.add("-E", "", "a component without an end", "write -E and the end before the options of each component")
		case c.OnMDT && i > 0:
			v.add("-L", "mdt", "not the first component", "only the first bytes of a file can be on the metadata server")
		case c.OnMDT && last:
			v.add("-L", "mdt", "the whole file on the metadata server", "write a component for the rest behind it, for example -E 1M -L mdt -E eof -c 4")
		case c.End != EOF && c.End != 0 && last:
			v.add("-E", formatSize(c.End), "the last component ends before the file may", "write -E eof for the last one; a write behind the last component fails")
		case c.End == EOF && !last:
			v.add("-E", "eof", "not the last component", "write the components in ascending order, and eof with the last")
		}
		start = c.End
	}
	return errors.Join(v...)
}

// check judges one component that starts at byte start.
func (c Component) check(v *problems, start int64) {
	if c.End != EOF && c.End != 0 {
		switch {
		case c.End < 0 || c.End > maxEnd || c.End%SizeUnit != 0:
			v.add("-E", formatSize(c.End), "not a multiple of 64 KiB", "use sizes such as 64M or 1G")
		case c.End <= start && start > 0:
			v.add("-E", formatSize(c.End), "not behind the end of the component before, "+formatSize(start), "write the components in ascending order")
		case c.Size > 0 && c.End%c.Size != 0:
			v.add("-E", formatSize(c.End), "not a multiple of the stripe size "+formatSize(c.Size), "choose an end that stripes fill")
		}
	}
	if c.OnMDT {
		if c.Count != 0 || c.Size != 0 || c.Pool != "" || c.Overstripe {
			v.add("-L", "mdt", "with options for OSTs", "remove -c, -C, -S and -p from this component: its size is that of its end")
		}
		if c.End > MaxOnMDT {
			v.add("-E", formatSize(c.End), "too much for the metadata server", "use at most 1G, and rather 1M: lod.*.dom_stripesize limits it further")
		}
		return
	}
	letter := "-c"
	if c.Overstripe {
		letter = "-C"
	}
	if err := c.checkCount(letter); err != nil {
		*v = append(*v, err)
	}
	if err := c.checkSize(); err != nil {
		*v = append(*v, err)
	}
	if problem := badPool(c.Pool); problem != "" {
		v.add("-p", c.Pool, problem, "lfs pool_list FILESYSTEM names the pools")
	}
}

// checkCount judges the number of stripes, given with the option letter.
func (c Component) checkCount(letter string) error {
	least := AllOSTs
	if c.Overstripe {
		least = leastCount
	}
	if c.Count >= least && c.Count <= MaxCount {
		return nil
	}
	return &OptionError{letter, strconv.Itoa(c.Count), "not a number of stripes",
		fmt.Sprintf("use 1 to %d, 0 for the file system's default, -1 for all OSTs", MaxCount)}
}

func (c Component) checkSize() error {
	if c.Size >= 0 && c.Size%SizeUnit == 0 && c.Size <= MaxSize {
		return nil
	}
	return &OptionError{"-S", formatSize(c.Size), "not a multiple of 64 KiB below 4 GiB", "use 1m, 4m or 16m; 0 is the file system's default"}
}

// badPool returns why no pool can have this name; "" when one can.
func badPool(name string) string {
	switch {
	case len(name) > MaxPool:
		return fmt.Sprintf("%d bytes, and the name of a pool has at most %d", len(name), MaxPool)
	case name == noInherit || name == noInherit15:
		return "a word that means no pool"
	case strings.ContainsFunc(name, func(r rune) bool { return !isWord(r) }):
		return "not a plain name of letters, digits, - and _"
	}
	return ""
}

func isWord(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_'
}

// manyOSTs is where NERSC begins to warn: from there on a file meets every
// slow OST there is.
const manyOSTs = 72

// Warnings returns what works and is unwise, for files of fileBytes bytes.
func (l Layout) Warnings(fileBytes int64) []string {
	var all []string
	start := int64(0)
	for _, c := range l.Components {
		switch {
		case start >= fileBytes:
			all = append(all, fmt.Sprintf("the component from %s on is never reached: segments end at %s", formatSize(start), formatSize(fileBytes)))
		case c.Count > manyOSTs:
			all = append(all, fmt.Sprintf("%d stripes: above %d sites advise against it; each file then waits for its slowest OST", c.Count, manyOSTs))
		case c.Count < 0:
			all = append(all, "a stripe on every OST: one OST that is down or full then stops every segment")
		case c.Size > 0 && c.Size < 1<<20:
			all = append(all, fmt.Sprintf("stripes of %s: a block of some MiB then needs many OSTs; 4M is Lustre's default", formatSize(c.Size)))
		}
		if c.Overstripe {
			all = append(all, "overstriping: for file systems with few OSTs only")
		}
		if c.OnMDT {
			all = append(all, "the beginning of each segment on the metadata server: it holds ordinary blocks, and that server has other work")
		}
		start = c.End
		if start == EOF {
			break
		}
	}
	return all
}

// shellQuote makes one word of path for a shell.
func shellQuote(path string) string {
	plain := func(r rune) bool { return isWord(r) || strings.ContainsRune("/.,:=@%+", r) }
	if path != "" && !strings.ContainsFunc(path, func(r rune) bool { return !plain(r) }) && path[0] != '-' {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}
