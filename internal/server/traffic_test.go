package server

import (
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"cascadekv/cascade"
	"cascadekv/cascade/traffic"
	"cascadekv/internal/block"
	"cascadekv/internal/resp"
)

// trafficOf asks for commands until there are n.
func trafficOf(t *testing.T, c *resp.Client, since string, n int) (all []traffic.Command, next string) {
	t.Helper()
	for len(all) < n {
		rep, err := c.Do("CASCADE.TRAFFIC", since, "WAIT", "5000")
		if err != nil || len(rep.Elems) != 3 || rep.Elems[1].Int != 0 || len(rep.Elems[2].Elems) == 0 { // fewer than n
			t.Fatal(rep, err)
		}
		for _, e := range rep.Elems[2].Elems {
			x, err := traffic.Parse(e.Str)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, x)
		}
		since = fmt.Sprint(rep.Elems[0].Int)
	}
	return all, since
}

// TestTrafficOverTheSocket: commands are logged while somebody asks, brief ones too, each once,
// with who sent them; only the rank's own user on its unix socket may ask.
func TestTrafficOverTheSocket(t *testing.T) {
	r := newRig(t, 8<<20)
	c, reader, other := r.client("unix"), r.client("unix"), r.client("tcp")
	do := func(c *resp.Client, line string) {
		t.Helper()
		if _, err := c.Do(strings.Fields(line)...); err != nil {
			t.Fatal(line, err)
		}
	}
	do(c, "EXISTS before")
	if cascade.Traffic(r.store).On() || cascade.Traffic(r.store).Next() != 1 {
		t.Error("commands are logged and nobody asked")
	}
	if _, err := other.Do("CASCADE.TRAFFIC", "0"); err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("over TCP: %v", err)
	}
	first, err := reader.Do("CASCADE.TRAFFIC", "0")
	if err != nil || len(first.Elems) != 3 || len(first.Elems[2].Elems) != 0 {
		t.Fatal(first, err)
	}
	lines := []string{"SET a v", "CASCADE.PUT b v PARENT a", "EXISTS b c", "GET b", "GET b", "GET b", "GET none", "CASCADE.CONTAINS ns k", "DEL a"}
	for _, l := range lines {
		do(c, l)
	}
	do(other, "EXISTS b")
	got, next := trafficOf(t, reader, fmt.Sprint(first.Elems[0].Int), len(lines))
	a, b := block.Fingerprint("redis/0", "a"), block.Fingerprint("redis/0", "b")
	var text []string
	for i, x := range got {
		if age := time.Now().UnixMilli() - x.At; age < 0 || age > 60_000 {
			t.Errorf("command %d was %d ms ago", i, age)
		}
		if own := x.Engine == uint64(os.Getpid()); own != (i < len(lines)-1) || x.Conn == 0 {
			t.Errorf("command %d is of engine %d, connection %d", i, x.Engine, x.Conn)
		}
		text = append(text, fmt.Sprint(x.Kind, len(x.Keys), x.Keys[0] == b, x.Parent == a))
	}
	want := []string{"3 1 false false", "3 1 true true", "1 2 true true", "2 1 true true", "2 1 true true", "2 1 true true", "2 1 false false",
		"1 1 false false", "1 1 true true"}
	if strings.Join(text, "\n") != strings.Join(want, "\n") {
		t.Errorf("%q, want %q", text, want)
	}
	before := r.srv.counters.polled.Load()
	const brief = 50
	for range brief {
		do(c, "EXISTS b")
	}
	if got, next = trafficOf(t, reader, next, brief); len(got) != brief || r.srv.counters.polled.Load() == before {
		t.Errorf("%d commands of %d are logged, %d were served by the poller", len(got), brief, r.srv.counters.polled.Load()-before)
	}
	if rep, err := reader.Do("CASCADE.TRAFFIC", next); err != nil || len(rep.Elems[2].Elems) != 0 {
		t.Error("a command was logged twice", rep, err)
	}
}

// TestTrafficBytes is docs/protocol.md's example, as it comes from the socket.
func TestTrafficBytes(t *testing.T) {
	r := newRig(t, 8<<20)
	conn, in := r.raw("unix")
	defer conn.Close()
	ask := func(command string, want int) []byte {
		t.Helper()
		if _, err := conn.Write([]byte(command)); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, want)
		for n := 0; n < want; {
			m, err := in.Read(got[n:])
			if err != nil {
				t.Fatal(err)
			}
			n += m
		}
		return got
	}
	ask("CASCADE.TRAFFIC 0\r\n", len("*3\r\n:1\r\n:0\r\n*0\r\n"))
	keys := "2b2dfe27cf4540af6b5e65997eab3655"
	cascade.Traffic(r.store).Add(traffic.Command{Kind: traffic.Put, Chained: true, At: 1_800_000_000_123, Sender: traffic.Sender{Engine: 4711, Conn: 7},
		Parent: 5, Namespace: "ns", Keys: block.Fingerprints("ns", "a", "b")})
	command, err := hex.DecodeString("03017b505c18a301000067120000000000000700000000000000050000000000000002006e73" + keys)
	want := "*3\r\n:2\r\n:0\r\n*1\r\n$" + fmt.Sprint(len(command)) + "\r\n" + string(command) + "\r\n"
	if got := ask("CASCADE.TRAFFIC 1\r\n", len(want)); err != nil || string(got) != want {
		t.Errorf("%q, want %q", got, want)
	}
}
