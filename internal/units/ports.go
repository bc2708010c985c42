package units

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrPorts marks text that is not a range of ports.
var ErrPorts = errors.New("not a range of ports")

// Ports is a range of TCP and UDP ports, both ends included: the first in its upper
// half, the last in its lower one. 0 is none.
type Ports uint32

// ParsePorts reads "20000-20100", one port, or nothing. The error matches ErrPorts.
func ParsePorts(s string) (Ports, error) {
	text := strings.TrimSpace(s)
	if text == "" {
		return 0, nil
	}
	low, high, isRange := strings.Cut(text, "-")
	if !isRange {
		high = low
	}
	first, err := strconv.ParseUint(strings.TrimSpace(low), 10, 16)
	last, herr := strconv.ParseUint(strings.TrimSpace(high), 10, 16)
	if err != nil || herr != nil || first == 0 || last < first {
		return 0, fmt.Errorf("%w: %q; write the first and the last, from 1 to 65535, such as 20000-20100", ErrPorts, s)
	}
	return Ports(first<<16 | last), nil
}

// First is the lowest port.
func (p Ports) First() int { return int(p >> 16) }

// Last is the highest port.
func (p Ports) Last() int { return int(p & 0xffff) }

// Count is how many ports there are.
func (p Ports) Count() int {
	if p == 0 {
		return 0
	}
	return p.Last() - p.First() + 1
}

// String writes what ParsePorts reads.
func (p Ports) String() string {
	switch p.Count() {
	case 0:
		return ""
	case 1:
		return strconv.Itoa(p.First())
	}
	return fmt.Sprintf("%d-%d", p.First(), p.Last())
}

// MarshalText returns String.
func (p Ports) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what ParsePorts accepts; on error p is unchanged.
func (p *Ports) UnmarshalText(text []byte) error { return p.Set(string(text)) }

// Set makes Ports a command-line flag; on error p is unchanged.
func (p *Ports) Set(s string) error {
	v, err := ParsePorts(s)
	if err == nil {
		*p = v
	}
	return err
}

// Type is the word that stands for a value in --help.
func (Ports) Type() string { return "ports" }
