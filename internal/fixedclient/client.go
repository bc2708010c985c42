package fixedclient

import (
	"bytes"
	"strings"
)

// Client is what is known of the client of one connection. It is used by one goroutine
// at a time.
type Client struct {
	Possible bool  // nothing seen so far speaks against it
	Seen     bool  // a key of LMCache's form was seen
	Size     int64 // of the value that was set or got last; -1: none
	Waiting  bool  // the connection is closed unless something comes
}

// New returns what is known before the first command; tcp: of a connection over TCP, as
// the client's are.
func New(tcp bool) Client { return Client{Possible: tcp, Size: -1} }

// Is reports whether the connection is taken for a fixed-length client.
func (f *Client) Is() bool { return f.Possible && f.Seen }

// Observe takes a command into account before it is served: its name in upper case and
// its words, that included. plain: it is an array of RESP2; cut: its value was dropped.
func (f *Client) Observe(name string, words [][]byte, plain, cut bool) {
	f.Waiting = false
	if !f.Possible {
		return
	}
	args := len(words)
	switch {
	case !plain:
		f.Possible = false
	case name == "AUTH":
		return
	case name == "SET" && (args == 3 || args == 2 && cut), name == "GET" && args == 2, name == "EXISTS" && args == 2, name == "DEL" && args == 2:
		key := words[1]
		f.Seen = true
		f.Possible = bytes.Count(key, []byte("@")) >= 2 && !isHalf(string(key))
	default:
		f.Possible = false
	}
}

// Header returns how many bytes of a reply come before a value of the size that the
// client expects: len("$<size>\r\n").
func (f *Client) Header() int {
	n := 4
	for size := f.Size; size >= 10; size /= 10 {
		n++
	}
	return n
}

// BytesOf returns the key of the bytes that a key describes, in LMCache's three
// spellings: <k>metadata, <k>:metadata, {k}:metadata.
func BytesOf(key string) (half string, ok bool) {
	k, ok := strings.CutSuffix(key, "metadata")
	if !ok || k == "" {
		return "", false
	}
	return k + "kv_bytes", true
}

func isHalf(key string) bool {
	return strings.HasSuffix(key, "kv_bytes") || strings.HasSuffix(key, "metadata")
}
