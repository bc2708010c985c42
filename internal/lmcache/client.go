package lmcache

import (
	"bytes"
	"strings"
)

// PairOf returns the key of the bytes that a metadata key belongs to, in
// LMCache's three spellings: <k>metadata, <k>:metadata, {k}:metadata.
func PairOf(key string) (kvBytes string, ok bool) {
	k, ok := strings.CutSuffix(key, "metadata")
	if !ok || k == "" {
		return "", false
	}
	return k + "kv_bytes", true
}

func isPairHalf(key string) bool {
	return strings.HasSuffix(key, "kv_bytes") || strings.HasSuffix(key, "metadata")
}

// Client recognises LMCache's C++ client, which takes replies by their
// length. It differs from a plain client by never doing anything that client would not.
type Client struct {
	Possible bool  // nothing seen so far speaks against it
	Seen     bool  // a key of LMCache's form was seen
	Size     int64 // of the value that was set or got last; negative: of none
	Waiting  bool  // the connection is closed unless something comes
}

// NewClient is a connection before its first command; tcp is whether it may be
// LMCache's C++ client at all.
func NewClient(tcp bool) Client { return Client{Possible: tcp, Size: -1} }

// Fixed reports whether the connection is taken for a fixed-length client.
func (f *Client) Fixed() bool { return f.Possible && f.Seen }

// Header returns how many bytes the client takes before a value of the size that it
// expects: len("$<size>\r\n").
func (f *Client) Header() int {
	n := 4
	for size := f.Size; size >= 10; size /= 10 {
		n++
	}
	return n
}

// Observe takes a command into account: its name and its arguments, the name among them.
// basic is whether it came as an array, under RESP2; dropped is whether arguments that
// followed were dropped.
func (f *Client) Observe(name string, args [][]byte, basic, dropped bool) {
	f.Waiting = false
	if !f.Possible {
		return
	}
	n := len(args)
	switch {
	case !basic:
		f.Possible = false
	case name == "AUTH":
		return
	case name == "SET" && (n == 3 || n == 2 && dropped), name == "GET" && n == 2, name == "EXISTS" && n == 2, name == "DEL" && n == 2:
		key := args[1]
		f.Seen = true
		f.Possible = bytes.Count(key, []byte("@")) >= 2 && !isPairHalf(string(key))
	default:
		f.Possible = false
	}
}
