package server

import (
	"bytes"
	"strings"
	"time"

	"cascadekv/internal/resp"
)

// pairOf returns the key of the bytes that a metadata key belongs to, in
// LMCache's three spellings: <k>metadata, <k>:metadata, {k}:metadata.
func pairOf(key string) (kvBytes string, ok bool) {
	k, ok := strings.CutSuffix(key, "metadata")
	if !ok || k == "" {
		return "", false
	}
	return k + "kv_bytes", true
}

func isPairHalf(key string) bool {
	return strings.HasSuffix(key, "kv_bytes") || strings.HasSuffix(key, "metadata")
}

// fixedClient recognises LMCache's C++ client, which takes replies by their
// length (docs/protocol.md §5). It is told apart from a plain client by never
// doing anything that client would not.
type fixedClient struct {
	possible bool // nothing seen so far speaks against it
	seen     bool // a key of LMCache's form was seen
	size     int64
	waiting  bool // the connection is closed unless something comes
}

func newFixedClient(tcp bool) fixedClient { return fixedClient{possible: tcp, size: -1} }

// is tells whether the connection is taken for a fixed-length client.
func (f *fixedClient) is() bool { return f.possible && f.seen }

// saw takes a command into account before it is served.
func (f *fixedClient) saw(name string, cmd *resp.Command, proto int) {
	f.waiting = false
	if !f.possible {
		return
	}
	args := len(cmd.Args)
	switch {
	case cmd.Inline || proto != 2:
		f.possible = false
	case name == "AUTH":
		return
	case name == "SET" && (args == 3 || args == 2 && cmd.Err != nil), name == "GET" && args == 2, name == "EXISTS" && args == 2, name == "DEL" && args == 2:
		key := cmd.Args[1]
		f.seen = true
		f.possible = bytes.Count(key, []byte("@")) >= 2 && !isPairHalf(string(key))
	default:
		f.possible = false
	}
}

// knows notes the size of a value that was set or got.
func (f *fixedClient) knows(size int64) { f.size = size }

// missClose is how long a client that can not be told of a miss is left
// hanging before the connection is closed, which it notices.
const missClose = 5 * time.Second

// miss answers a GET of an absent key.
func (c *conn) miss() {
	if !c.fixed.is() || !c.srv.limits.Load().FixedMiss {
		c.wr.Null()
		return
	}
	if c.fixed.size >= 0 {
		c.wr.ErrorExact("ERR absent", headerLen(c.fixed.size))
		return
	}
	c.wr.Null()
	c.fixed.waiting = true
	c.sock.Patience = missClose
}

// headerLen is len("$<size>\r\n").
func headerLen(size int64) int {
	n := 4
	for ; size >= 10; size /= 10 {
		n++
	}
	return n
}
