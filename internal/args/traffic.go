package args

import (
	"strings"
	"time"

	"cascadekv/cascade/traffic"
	"cascadekv/internal/block"
	"cascadekv/internal/lmcache"
)

// Traffic returns what a command, in upper case, does with which keys; ns is the namespace of
// commands that name none. It is false for a command that does nothing with the keys of a
// chain, and for one that is not understood. first is the first of the keys. Keys of commands that Redis has too may be of
// several chains, or part of one; those of CASCADE's own are a chain, but for a STORE of
// several keys without CHAIN. Kind, Chained, Parent, Namespace and Keys are set.
func Traffic(name, ns string, words [][]byte, now time.Time) (c traffic.Command, first []byte, ok bool) {
	var keys [][]byte
	c.Namespace = ns
	switch name {
	case "EXISTS":
		c.Kind, keys = traffic.Looked, words[1:]
	case "GET", "MGET":
		c.Kind, keys = traffic.Got, words[1:]
	case "SET":
		c.Kind, keys = traffic.Put, words[1:2]
	case "CASCADE.PROBE", "CASCADE.CONTAINS", "CASCADE.GETSHM":
		c.Kind, c.Namespace, c.Chained, keys = traffic.Looked, string(words[1]), true, words[2:]
		if name == "CASCADE.GETSHM" {
			c.Kind = traffic.Got
		}
	case "CASCADE.GET":
		c.Kind, keys = traffic.Got, words[len(words)-1:]
		if len(words) == 4 {
			c.Namespace = string(words[2])
		}
	case "CASCADE.ADVISE":
		c.Kind, c.Namespace, c.Chained = traffic.Looked, string(words[1]), true
		_, _, keys, _ = ParseAdvise(words[2:])
	default:
		keys, ok = stored(name, words, now, &c)
		if !ok {
			return c, nil, false
		}
	}
	c.Keys = make([]uint64, 0, len(keys))
	for _, k := range keys {
		if !isMetadata(k) {
			if first == nil {
				first = k
			}
			c.Keys = append(c.Keys, block.Fingerprint(c.Namespace, k))
		}
	}
	return c, first, len(c.Keys) > 0 && len(c.Namespace) <= block.MaxKey && !strings.HasPrefix(c.Namespace, "\x00")
}

// isMetadata reports whether a key is half of a pair, of which the other half counts.
func isMetadata(key []byte) bool {
	_, is := lmcache.PairOf(string(key))
	return is
}

// stored is Traffic of commands with options; it returns their keys.
func stored(name string, words [][]byte, now time.Time, c *traffic.Command) (keys [][]byte, ok bool) {
	parent, bad := "", ""
	c.Kind, c.Chained = traffic.Put, true
	switch name {
	case "CASCADE.PUT", "CASCADE.ALIAS":
		e, wrong := ParsePut(words, c.Namespace, now)
		keys, c.Namespace, parent, bad = words[1:2], e.Namespace, e.Parent, wrong
		if e.Bound { // no block of a chain
			return nil, false
		}
	case "CASCADE.COMMIT":
		var o Commit
		bad = o.Parse(words[4:], now)
		keys, c.Namespace, parent = words[3:4], string(words[2]), o.Entry.Parent
	case "CASCADE.STORE", "CASCADE.LOAD":
		store := name == "CASCADE.STORE"
		o, all, wrong := ParseTransfer(words[4:], store, now)
		keys, c.Namespace, parent, bad, c.Chained = all, string(words[2]), o.Parent, wrong, o.Chain || !store || len(all) == 1
		if !store {
			c.Kind = traffic.Got
		}
	default:
		return nil, false
	}
	if parent != "" {
		c.Parent = block.Fingerprint(c.Namespace, parent)
	}
	return keys, bad == ""
}
