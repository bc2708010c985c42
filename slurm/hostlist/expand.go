package hostlist

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Bounds of what a list stands for. Slurm allows 65,536 hosts in a range.
const (
	MaxHosts    = 1 << 16
	MaxName     = 255 // bytes of a host's name
	maxBrackets = 16  // of a host: each is gone through for all names
	maxWidth    = 18  // digits of a number
)

// Errors of Expand and Compress, for errors.Is.
var (
	ErrSyntax = errors.New("hostlist: not a list of hosts")
	ErrLarge  = errors.New("hostlist: too large")
)

// separators come between hosts.
const separators = ", \t\r\n"

// Expand returns the hosts of a list. An empty list has none.
func Expand(list string) ([]string, error) {
	var hosts []string
	for rest := list; ; {
		rest = strings.TrimLeft(rest, separators)
		if rest == "" {
			return hosts, nil
		}
		word, err := cut(rest)
		if err != nil {
			return nil, err
		}
		rest = rest[len(word):]
		if hosts, err = appendHosts(hosts, word); err != nil {
			return nil, err
		}
	}
}

// cut returns the first host, with its brackets, of a list.
func cut(list string) (string, error) {
	inside := false
	for i, c := range []byte(list) {
		switch {
		case c == '[' && inside:
			return "", fmt.Errorf("%w: %s: a bracket within brackets", ErrSyntax, excerpt(list))
		case c == ']' && !inside:
			return "", fmt.Errorf("%w: %s: ] without [", ErrSyntax, excerpt(list))
		case c == '[' || c == ']':
			inside = !inside
		case !inside && strings.IndexByte(separators, c) >= 0:
			return list[:i], nil
		}
	}
	if inside {
		return "", fmt.Errorf("%w: %s: [ without ]", ErrSyntax, excerpt(list))
	}
	return list, nil
}

// span is the numbers from low to high, written with at least width digits.
type span struct {
	low, high uint64
	width     int
}

// appendHosts appends what one host with brackets stands for.
func appendHosts(hosts []string, word string) ([]string, error) {
	names, brackets := []string{""}, 0
	for rest := word; ; { // the last text may be empty: it is looked at for the length of the names
		text, after, bracket := strings.Cut(rest, "[")
		for i := range names {
			if names[i] += text; len(names[i]) > MaxName {
				return nil, fmt.Errorf("%w: the name %s has more than %d bytes", ErrLarge, excerpt(names[i]), MaxName)
			}
		}
		if rest = after; !bracket {
			break
		}
		if brackets++; brackets > maxBrackets {
			return nil, fmt.Errorf("%w: %s has more than %d brackets", ErrLarge, excerpt(word), maxBrackets)
		}
		inside, after, _ := strings.Cut(rest, "]")
		rest = after
		spans, total, err := parseSpans(inside)
		if err != nil {
			return nil, fmt.Errorf("%w in %s", err, excerpt(word))
		}
		if uint64(len(names))*total > MaxHosts {
			return nil, fmt.Errorf("%w: %s stands for more than %d hosts", ErrLarge, excerpt(word), MaxHosts)
		}
		names = combine(names, spans, int(total), !strings.Contains(rest, "["))
	}
	if len(hosts)+len(names) > MaxHosts {
		return nil, fmt.Errorf("%w: more than %d hosts", ErrLarge, MaxHosts)
	}
	return append(hosts, names...), nil
}

// combine returns each name with each number behind it, in Slurm's order: the number
// in the last brackets of a host changes first, then those in the first, the second
// and so on.
func combine(names []string, spans []span, total int, last bool) []string {
	all := make([]string, 0, len(names)*total)
	for _, s := range spans {
		for n := s.low; n <= s.high; n++ {
			digits := fmt.Sprintf("%0*d", s.width, n)
			for _, name := range names {
				all = append(all, name+digits)
			}
		}
	}
	if !last {
		return all
	}
	ordered := make([]string, 0, len(all))
	for i := range names {
		for n := range total {
			ordered = append(ordered, all[n*len(names)+i])
		}
	}
	return ordered
}

// parseSpans reads what is between brackets, and counts its numbers.
func parseSpans(inside string) (spans []span, total uint64, err error) {
	for text := range strings.SplitSeq(inside, ",") {
		first, last, isRange := strings.Cut(text, "-")
		if !isRange {
			last = first
		}
		low, okLow := number(first)
		high, okHigh := number(last)
		if !okLow || !okHigh || low > high {
			return nil, 0, fmt.Errorf("%w: %q is no range of numbers", ErrSyntax, excerpt(text))
		}
		if high-low >= MaxHosts || total > MaxHosts {
			return nil, 0, fmt.Errorf("%w: more than %d numbers", ErrLarge, MaxHosts)
		}
		total += high - low + 1
		spans = append(spans, span{low, high, len(first)})
	}
	return spans, total, nil
}

// number reads digits and nothing else.
func number(text string) (uint64, bool) {
	if text == "" || len(text) > maxWidth || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil
}

// excerpt is the beginning of a text for an error.
func excerpt(text string) string {
	const most = 60
	if len(text) > most {
		return strconv.Quote(text[:most]) + "…"
	}
	return strconv.Quote(text)
}
