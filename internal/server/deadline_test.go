package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"cascadekv/cascade"
	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
	"cascadekv/internal/block"
	"cascadekv/lustre"
	"cascadekv/tiers"
)

// hangingTier is a cold tier that answers nothing until the gate is open, as on
// a file system whose servers are gone.
type hangingTier struct {
	*lustre.Tier
	gate chan struct{}
}

func (h *hangingTier) pass(ctx context.Context) error {
	select {
	case <-h.gate:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", tiers.ErrUnavailable, ctx.Err())
	}
}

func (h *hangingTier) Put(ctx context.Context, items ...tiers.Item) error {
	if err := h.pass(ctx); err != nil {
		return err
	}
	return h.Tier.Put(ctx, items...)
}

func (h *hangingTier) ReadBatch(ctx context.Context, reads []tiers.Read) []error {
	if err := h.pass(ctx); err != nil {
		errs := make([]error, len(reads))
		for i, r := range reads {
			errs[i] = err
			r.Done(err)
		}
		return errs
	}
	return h.Tier.ReadBatch(ctx, reads)
}

// soon is how long commands of these tests wait, where the store's own limits
// would have them wait for a minute: longer than clients of a rig do.
const soon = 300 * time.Millisecond

func inTime(o *Options) { o.AnswerWithin = soon }

// newHungRig is a rig over a hanging tier, which has the values; open lets the
// tier answer again, at the latest when the test ends.
func newHungRig(t *testing.T, shmBytes int64, values map[string][]byte) (r *rig, open func()) {
	t.Helper()
	cold := &hangingTier{leftBehind(t, values), make(chan struct{})}
	r = newRigOver(t, shmBytes, cold, inTime)
	r.store.SetLimits(cascade.Limits{RoomDeadline: time.Minute, FetchDeadline: time.Minute})
	open = sync.OnceFunc(func() { close(cold.gate) })
	t.Cleanup(open)
	return r, open
}

// command is one as LMCache's C++ client sends it.
func command(words ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	return b.String()
}

// asked sends a command and wants exactly these bytes back.
func asked(t *testing.T, c net.Conn, rd *bufio.Reader, want string, words ...string) {
	t.Helper()
	if _, err := io.WriteString(c, command(words...)); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, len(want))
	if n, err := io.ReadFull(rd, answer); err != nil || string(answer) != want {
		t.Fatalf("%.40q is answered %q, %v; want %q", words, answer[:n], err, want)
	}
}

// TestHungTierIsAnsweredInTime: what hangs below is a miss, and the connection
// goes on.
func TestHungTierIsAnsweredInTime(t *testing.T) {
	const key, size = "model@01000100@0@abcd", 1000
	p := randomBytes(1, size)
	for name, network := range map[string]string{"plain": "unix", "fixed-length": "tcp"} {
		t.Run(name, func(t *testing.T) {
			r, open := newHungRig(t, 16<<20, map[string][]byte{key: p})
			c, rd := r.raw(network)
			miss := "$-1\r\n"
			if network == "tcp" {
				miss = "-ERR \r\n" // as long as "$1000\r\n"
			}
			asked(t, c, rd, "+OK\r\n", "SET", "model@01000100@0@here", string(randomBytes(2, size)))
			asked(t, c, rd, miss, "GET", key)
			asked(t, c, rd, ":1\r\n", "EXISTS", key) // it may come back
			asked(t, c, rd, ":0\r\n", "EXISTS", "model@01000100@0@none")
			asked(t, c, rd, "+OK\r\n", "SET", "model@01000100@0@more", string(randomBytes(3, size)))
			open()
			asked(t, c, rd, fmt.Sprintf("$%d\r\n%s\r\n", size, p), "GET", key)
			asked(t, c, rd, ":1\r\n", "DEL", key)
		})
	}
}

// TestMGetHasOneDeadline: its parts wait together as long as any command does,
// and what is in memory comes all the same.
func TestMGetHasOneDeadline(t *testing.T) {
	r, open := newHungRig(t, 16<<20, map[string][]byte{"cold": []byte("below")})
	c := r.client("unix")
	if err := c.Set("here", []byte("above")); err != nil {
		t.Fatal(err)
	}
	args := []string{"MGET"}
	const parts = 200 // with soon for each of them the client gives up
	for range parts {
		for range mgetFirst {
			args = append(args, "cold")
		}
	}
	args = append(args, "here") // last: parts are larger once a size is known
	reply, err := c.Do(args...)
	if err != nil || len(reply.Elems) != len(args)-1 {
		t.Fatalf("%d values, %v", len(reply.Elems), err)
	}
	for i, e := range reply.Elems {
		if here := args[1+i] == "here"; e.Null() == here || here && string(e.Str) != "above" {
			t.Fatalf("value %d of %q is %q", i, args[1+i], e.Str)
		}
	}
	open()
	if _, err := c.Get("cold", make([]byte, 5)); err != nil {
		t.Error("afterwards:", err)
	}
}

// TestSetWithoutRoomIsAnsweredInTime: memory is full of what the hung tier does
// not take.
func TestSetWithoutRoomIsAnsweredInTime(t *testing.T) {
	for name, network := range map[string]string{"plain": "unix", "fixed-length": "tcp"} {
		t.Run(name, func(t *testing.T) {
			r, open := newHungRig(t, 16<<20, nil)
			c, rd := r.raw(network)
			refused := "-OOM "
			if network == "tcp" {
				refused = "-NO\r\n"
			}
			value := func(i int) string { return string(randomBytes(uint64(i), 3<<20)) }
			stored := 0
			for ; ; stored++ {
				if stored > 10 {
					t.Fatal("memory is never full")
				}
				if _, err := io.WriteString(c, command("SET", fmt.Sprint("model@01000100@0@", stored), value(stored))); err != nil {
					t.Fatal(err)
				}
				answer := make([]byte, 5)
				if _, err := io.ReadFull(rd, answer); err != nil {
					t.Fatal(err)
				}
				if string(answer) == "+OK\r\n" {
					continue
				}
				if string(answer) != refused {
					t.Fatalf("SET is answered %q, want %q", answer, refused)
				}
				break
			}
			if network == "unix" {
				if _, err := rd.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			asked(t, c, rd, ":1\r\n", "EXISTS", "model@01000100@0@0")
			open()
			asked(t, c, rd, "+OK\r\n", "SET", "model@01000100@0@more", value(99))
			asked(t, c, rd, fmt.Sprintf("$%d\r\n%s\r\n", 3<<20, value(99)), "GET", "model@01000100@0@more")
		})
	}
}

// TestAnswersAreNotKeptBack: what a client sent on before it was answered does
// not hold the answer up.
func TestAnswersAreNotKeptBack(t *testing.T) {
	r, _ := newHungRig(t, 16<<20, map[string][]byte{"cold": []byte("below")})
	c, rd := r.raw("unix")
	whole := command("SET", "k", "v")
	if _, err := io.WriteString(c, command("GET", "cold")+whole[:len(whole)-3]); err != nil {
		t.Fatal(err)
	}
	if line, err := rd.ReadString('\n'); line != "$-1\r\n" {
		t.Fatalf("GET is answered %q, %v", line, err)
	}
	if _, err := io.WriteString(c, whole[len(whole)-3:]); err != nil {
		t.Fatal(err)
	}
	if line, err := rd.ReadString('\n'); line != "+OK\r\n" {
		t.Fatalf("SET is answered %q, %v", line, err)
	}
}

// TestSlowSenderKeepsItsTime: what a client takes to send its value is not
// waited by it.
func TestSlowSenderKeepsItsTime(t *testing.T) {
	r := newRig(t, 16<<20, inTime, func(o *Options) { o.Store.Join(silent{answers: 1}) })
	c, rd := r.raw("unix")
	p := randomBytes(1, 200_000)
	head := fmt.Sprintf("*4\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n", len(p))
	for _, part := range []string{head, string(p[:100_000]), string(p[100_000:]), "\r\n$2\r\nXX\r\n"} {
		if _, err := io.WriteString(c, part); err != nil {
			t.Fatal(err)
		}
		time.Sleep(soon)
	}
	if line, err := rd.ReadString('\n'); line != "+OK\r\n" {
		t.Fatalf("SET XX of a name that another rank has is answered %q, %v", line, err)
	}
}

// silent are other ranks that answer no question, or only whether they have a
// name, when they are still waited for: they have all.
type silent struct{ answers int }

func (s silent) wait(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (s silent) Locate(ctx context.Context, ns string, keys []string) [][]directory.Statement {
	found := make([][]directory.Statement, len(keys))
	if s.answers == 0 {
		_ = s.wait(ctx)
		return found
	}
	if ctx.Err() == nil {
		for i := range found {
			found[i] = []directory.Statement{{}}
		}
	}
	return found
}

func (s silent) Read(ctx context.Context, reads []directory.Read) {
	err := s.wait(ctx)
	for i := range reads {
		reads[i].Err = err
	}
}
func (s silent) Self() fabric.Rank { return 0 }
func (s silent) Claim(ctx context.Context, claims []directory.Statement) [][]directory.Statement {
	_ = s.wait(ctx)
	return make([][]directory.Statement, len(claims))
}
func (s silent) NamesOf(context.Context, fabric.Rank, block.ID) ([]block.Name, error) {
	return nil, fabric.ErrUnreachable
}

func (s silent) Entrust(ctx context.Context, _ fabric.Rank, _ []directory.Statement) ([]int, error) {
	return nil, s.wait(ctx)
}
func (s silent) Expire(ctx context.Context, _, _ string, _ time.Time) (bool, error) {
	return false, s.wait(ctx)
}
func (s silent) Delete(ctx context.Context, _, _ string, _ uint64) error     { return s.wait(ctx) }
func (s silent) Clear(ctx context.Context, _ string, _ bool, _ uint64) error { return s.wait(ctx) }
func (silent) Publish(...directory.Statement)                                {}
func (silent) Settled(context.Context) bool                                  { return true }
func (silent) Invalidate(directory.Statement)                                {}
func (silent) Touch(fabric.Rank, string, []string)                           {}

// TestSilentRanksAreAnsweredInTime: a command asks other ranks for as long as a
// command may take, whatever number of its keys.
func TestSilentRanksAreAnsweredInTime(t *testing.T) {
	r := newRig(t, 16<<20, inTime, func(o *Options) { o.Store.Join(silent{}) })
	r.store.SetLimits(cascade.Limits{FetchDeadline: time.Minute})
	many := func(word string) []string {
		args := []string{word}
		for i := range 200 { // with soon for each of them the client gives up
			args = append(args, fmt.Sprint("k", i))
		}
		return args
	}
	nulls := "*200\r\n" + strings.Repeat("$-1\r\n", 200)
	c, rd := r.raw("unix")
	asked(t, c, rd, "$-1\r\n", "GET", "k0")
	asked(t, c, rd, nulls, many("MGET")...)
	asked(t, c, rd, ":0\r\n", many("EXISTS")...)
	asked(t, c, rd, "+OK\r\n", "SET", "mine", "v", "NX")
	asked(t, c, rd, ":0\r\n", many("DEL")...)
	asked(t, c, rd, "$1\r\nv\r\n", "GET", "mine")
}
