package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cascadekv/cascade"
	"cascadekv/internal/holdings"
	"cascadekv/internal/resp"
	"cascadekv/internal/transfer"
	"cascadekv/tiers"
	"cascadekv/tiers/shm"
)

// FuzzHeldCommands sends any arguments to the commands that hold parts of the
// arena. Each is answered by one well-formed reply, and when the connection
// ends nothing stays held.
func FuzzHeldCommands(f *testing.F) {
	for _, s := range []string{
		"GETSHM ns k k2 absent", "RELEASE 1 2", "RELEASE x", "STAGE 0 100 4096 -1", "STAGE 100 9223372036854775807", "ABORT 3",
		"COMMIT 1 ns key PARENT k PREFIX GENERATED PX 1000", "COMMIT 1 ns key PX", "COMMIT 1 ns key CRC32C 7", "COMMIT 9223372036854775808 ns key", "PIN ns k absent", "UNPIN ns k",
		"CONTAINS ns k absent", "EVENTS 0", "EVENTS 1 MAX 5 WAIT 0", "EVENTS 18446744073709551615", "EVENTS 1 MAX -1",
		"STAGE 10\nCOMMIT 1 ns a\nGETSHM ns a\nRELEASE 2\nEVENTS 1\nPIN ns a\nUNPIN ns a",
	} {
		f.Add(s)
	}
	dir, err := os.MkdirTemp("", "held")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = os.RemoveAll(dir) })
	mem, err := shm.Open(filepath.Join(dir, "a"), 8<<20)
	if err != nil {
		f.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	store, err := cascade.Open(context.Background(), cascade.Options{Memory: []tiers.Memory{mem}, Log: quiet, Limits: cascade.Limits{RoomDeadline: time.Millisecond}})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = store.Close(context.Background()) })
	s := &Server{opt: Options{Store: store}, log: quiet, jobs: transfer.NewPool(store, quiet)}
	s.SetLimits(Limits{Lease: time.Second})
	s.budget = holdingsBudget(store)
	f.Fuzz(func(t *testing.T, text string) {
		for _, key := range []string{"k", "k2"} {
			if _, err := store.Put(t.Context(), cascade.Entry{Namespace: "ns", Key: key}, bytes.Repeat([]byte(key), 1000), nil); err != nil {
				t.Fatal(err)
			}
		}
		c := &conn{srv: s, client: client{own: true}, login: login{authed: true}, held: holdings.Client{Budget: s.budget}, owner: "fuzz"}
		defer func() {
			c.held.DropAll()
			store.Leases().End(c.owner)
			if n, _, _, _ := s.budget.Used(); n != 0 {
				t.Errorf("%d bytes stay held", n)
			}
		}()
		for line := range strings.Lines(text) {
			words := strings.Split(strings.TrimSuffix(line, "\n"), " ")
			name := strings.ToUpper(words[0])
			if handlers["CASCADE."+name].run == nil || !handlers["CASCADE."+name].own || name == "ARENA" || strings.Contains(strings.ToUpper(line), "WAIT") {
				continue // ARENA and WAIT need a socket
			}
			args := [][]byte{[]byte("CASCADE." + name)}
			for _, w := range words[1:] {
				args = append(args, []byte(w))
			}
			c.dispatch(&resp.Command{Args: args, Sizes: make([]int64, len(args))})
			var out bytes.Buffer
			if err := c.wr.Flush(&out); err != nil {
				t.Fatal(err)
			}
			wellFormed(t, line, out.Bytes())
		}
	})
}

// canned is a connection to a server that has answered already.
type canned struct {
	net.Conn
	answers io.Reader
}

func (c canned) Read(p []byte) (int, error)  { return c.answers.Read(p) }
func (c canned) Write(p []byte) (int, error) { return len(p), nil }
func (c canned) Close() error                { return nil }
func (c canned) RemoteAddr() net.Addr        { return &net.UnixAddr{} }

// wellFormed checks that there is one answer, and nothing after it.
func wellFormed(t *testing.T, line string, answer []byte) {
	t.Helper()
	c := resp.NewClient(canned{answers: bytes.NewReader(append(bytes.Clone(answer), "+END\r\n"...))}, 0)
	c.Send("any")
	c.Send("end")
	if _, err := c.Receive(); err != nil && !errors.Is(err, resp.ErrServer) {
		t.Errorf("%q is answered %q: %v", line, answer, err)
	}
	if end, err := c.Receive(); err != nil || string(end.Str) != "END" {
		t.Errorf("%q is answered %q, and more", line, answer)
	}
}
