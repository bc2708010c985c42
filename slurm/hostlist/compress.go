package hostlist

import (
	"fmt"
	"strconv"
	"strings"
)

// Compress returns the list of hosts as "scontrol show hostlist" prints it: Expand
// returns the same hosts, in the same order. It fails with ErrSyntax when a host's
// name is empty or has a bracket, a comma or white space in it, and with ErrLarge
// when Expand would refuse the list.
func Compress(hosts []string) (string, error) {
	if len(hosts) > MaxHosts {
		return "", fmt.Errorf("%w: %d hosts, at most %d", ErrLarge, len(hosts), MaxHosts)
	}
	var b strings.Builder
	for rest := hosts; len(rest) > 0; {
		n := 0
		for n < len(rest) {
			if err := check(rest[n]); err != nil {
				return "", err
			}
			prefix, digits := cutNumber(rest[n])
			if first, _ := cutNumber(rest[0]); n > 0 && (digits == "" || prefix != first) {
				break
			}
			if n++; digits == "" {
				break
			}
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		writeGroup(&b, rest[:n])
		rest = rest[n:]
	}
	return b.String(), nil
}

func check(host string) error {
	switch {
	case host == "" || strings.ContainsAny(host, separators+"[]"):
		return fmt.Errorf("%w: %s is no name of a host", ErrSyntax, excerpt(host))
	case len(host) > MaxName:
		return fmt.Errorf("%w: the name %s has more than %d bytes", ErrLarge, excerpt(host), MaxName)
	}
	return nil
}

// cutNumber returns the digits at the end of a name, "" for none and for more than
// a number has, and what is before them.
func cutNumber(host string) (prefix, digits string) {
	prefix = strings.TrimRight(host, "0123456789")
	if digits = host[len(prefix):]; len(digits) > maxWidth {
		return host, ""
	}
	return prefix, digits
}

// writeGroup writes hosts that differ in the number at their end only.
func writeGroup(b *strings.Builder, hosts []string) {
	if len(hosts) == 1 {
		b.WriteString(hosts[0])
		return
	}
	prefix, _ := cutNumber(hosts[0])
	b.WriteString(prefix)
	separator := byte('[')
	for rest := hosts; len(rest) > 0; {
		n := run(rest)
		b.WriteByte(separator)
		separator = ','
		b.WriteString(rest[0][len(prefix):])
		if n > 1 {
			b.WriteString("-" + rest[n-1][len(prefix):])
		}
		rest = rest[n:]
	}
	b.WriteByte(']')
}

// run counts the hosts at the head of a group that one range stands for.
func run(group []string) int {
	prefix, first := cutNumber(group[0])
	low, _ := strconv.ParseUint(first, 10, 64) // at most maxWidth digits
	n := 1
	for n < len(group) && group[n][len(prefix):] == fmt.Sprintf("%0*d", len(first), low+uint64(n)) {
		n++
	}
	return n
}
