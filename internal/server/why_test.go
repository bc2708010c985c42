package server

import (
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"cascadekv/cascade"
	"cascadekv/internal/resp"
)

// TestWhyBytes: the answers to CASCADE.WHY on the wire, as docs/protocol.md has them.
func TestWhyBytes(t *testing.T) {
	r := newRig(t, 8<<20)
	for _, tc := range []struct{ send, want string }{
		{
			"*3\r\n$11\r\nCASCADE.WHY\r\n$2\r\nns\r\n$1\r\nk\r\n",
			"$263\r\n" + `{"state":"absent","bytes":0,"names":0,"dirty":false,"leased":false,"readers":0,"leads":false,"generated":false,"levels":[{"name":"shm","policy":"prefix","here":false,"idle_s":-1,` +
				`"holds":0,"before_blocks":0,"before_bytes":0}],"miss":{"reason":"never","kept_ms":0}}` + "\r\n",
		},
		{"*5\r\n$11\r\nCASCADE.PUT\r\n$1\r\nk\r\n$3\r\nabc\r\n$2\r\nNS\r\n$2\r\nns\r\n", "$32\r\nba7816bf8f01cfea414140de5dae2223\r\n"},
		{
			"*3\r\n$11\r\nCASCADE.WHY\r\n$2\r\nns\r\n$1\r\nk\r\n",
			"$336\r\n" + `{"state":"readable","id":"ba7816bf8f01cfea414140de5dae2223","bytes":3,"names":1,"dirty":true,"leased":false,"readers":0,"leads":false,"generated":false,` +
				`"levels":[{"name":"shm","policy":"prefix","here":true,"class":"fresh; 1 use; turn 1; request of 1 block","idle_s":0,` +
				`"holds":0,"before_blocks":0,"before_bytes":0}],"miss":{"kept_ms":0}}` + "\r\n",
		},
		{"*4\r\n$11\r\nCASCADE.DEL\r\n$2\r\nns\r\n$1\r\nk\r\n$1\r\nl\r\n", ":1\r\n"},
		{"*2\r\n$11\r\nCASCADE.WHY\r\n$2\r\nns\r\n", "-ERR wrong number of arguments for 'cascade.why' command\r\n"},
	} {
		if got := exchange(t, r.sock, tc.send, len(tc.want)); got != tc.want {
			t.Errorf("%q is answered\n%q, want\n%q", tc.send, got, tc.want)
		}
	}
}

// exchange sends text and returns so many bytes of the answer.
func exchange(t *testing.T, socket, text string, n int) string {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, n)
	read, _ := io.ReadFull(c, p)
	return string(p[:read])
}

// TestWhyMiss: what became of keys that clients stored, deleted and had refused.
func TestWhyMiss(t *testing.T) {
	r := newRig(t, 8<<20)
	c := r.client("unix")
	wants := func(ns, key, state, reason string) {
		t.Helper()
		rep, err := c.Do("CASCADE.WHY", ns, key)
		if err != nil {
			t.Fatal(err)
		}
		var got cascade.KeyReport
		if err := json.Unmarshal(rep.Str, &got); err != nil || got.State != state || got.Miss.Reason != reason {
			t.Errorf("%s: %v in %s, want %s, %q", key, err, rep.Str, state, reason)
		}
	}
	do := func(words ...string) (resp.Reply, error) { return c.Do(words...) }
	for i := range 12 {
		key := string(rune('a' + i))
		if _, err := do("SET", key, strings.Repeat(key, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	wants("redis/0", "a", cascade.NameAbsent, "evicted")
	wants("redis/0", "l", cascade.NameReadable, "")
	if _, err := do("DEL", "l"); err != nil {
		t.Fatal(err)
	}
	wants("redis/0", "l", cascade.NameAbsent, "deleted")
	huge := strings.Repeat("x", 9<<20)
	for _, words := range [][]string{{"SET", "huge", huge}, {"CASCADE.PUT", "huge", huge, "NS", "m"}} {
		if _, err := do(words...); err == nil {
			t.Fatal("more than the tier was stored")
		}
	}
	wants("redis/0", "huge", cascade.NameAbsent, "refused")
	wants("m", "huge", cascade.NameAbsent, "refused")
	wants("m", "other", cascade.NameAbsent, "never")
}
