package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"

	"cascadekv/cascade"
	"cascadekv/internal/holdings"
	"cascadekv/internal/resp"
)

// nobody is a client that sends one command, again and again, and reads no
// answer.
type nobody struct {
	command []byte
	at      int
}

func (n *nobody) Read(p []byte) (int, error) {
	if n.at == len(n.command) {
		n.at = 0
	}
	m := copy(p, n.command[n.at:])
	n.at += m
	return m, nil
}

// BenchmarkManyKeys is what the server does for one command of many keys, from
// parsing it to its answer, without the socket.
func BenchmarkManyKeys(b *testing.B) {
	r := newRig(b, 64<<20)
	const most = 4096
	keys := make([]string, most)
	for i := range keys {
		keys[i] = fmt.Sprintf("%064x", i*2654435761)
		if _, err := r.store.Put(context.Background(), cascade.Entry{Namespace: "ns", Key: keys[i]}, []byte(keys[i]), nil); err != nil {
			b.Fatal(err)
		}
	}
	for _, name := range []string{"CASCADE.CONTAINS", "CASCADE.PROBE"} {
		for _, n := range []int{1, 64, 512, most} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				var sent bytes.Buffer
				fmt.Fprintf(&sent, "*%d\r\n", n+2)
				for _, a := range append([]string{name, "ns"}, keys[:n]...) {
					fmt.Fprintf(&sent, "$%d\r\n%s\r\n", len(a), a)
				}
				src := &nobody{command: sent.Bytes()}
				c := &conn{srv: r.srv, client: client{own: true}, login: login{authed: true}, held: holdings.Client{Budget: r.srv.budget}, rd: resp.NewReader(src)}
				b.ReportAllocs()
				for b.Loop() {
					cmd, err := c.rd.Next(nil)
					if err != nil {
						b.Fatal(err)
					}
					c.dispatch(cmd)
					if err := c.wr.Flush(io.Discard); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkValue2MiB is one block of 2 MiB over the unix socket: as a view that
// is released again, and as bytes.
func BenchmarkValue2MiB(b *testing.B) {
	const size = 2 << 20
	c := newRig(b, 64<<20).client("unix")
	if err := c.Set("k", randomBytes(1, size)); err != nil {
		b.Fatal(err)
	}
	b.Run("view", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			rep, err := c.Do("CASCADE.GETSHM", "redis/0", "k")
			if err != nil || len(rep.Elems) != 1 || rep.Elems[0].Null() {
				b.Fatal(rep, err)
			}
			if _, err := c.Do("CASCADE.RELEASE", fmt.Sprint(rep.Elems[0].Elems[0].Int)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("bytes", func(b *testing.B) {
		into := make([]byte, size)
		b.SetBytes(size)
		for b.Loop() {
			if n, err := c.Get("k", into); err != nil || n != size {
				b.Fatal(n, err)
			}
		}
	})
}
