package replay

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"cascadekv/cascade"
	"cascadekv/internal/resp"
	"cascadekv/internal/trace"
	"cascadekv/tiers"
)

// rank serves CASCADE's commands on a unix socket from a fake target's memory.
type rank struct {
	f      *fake
	addr   string
	secret string
	oom    int // puts that are answered so, from the first on

	mu      sync.Mutex
	parents map[string]string
	spaces  map[string]bool
}

func startRank(t *testing.T, f *fake, secret string, oom int) *rank {
	t.Helper()
	r := &rank{f: f, addr: filepath.Join(t.TempDir(), "s"), secret: secret, oom: oom, parents: map[string]string{}, spaces: map[string]bool{}}
	l, err := net.Listen("unix", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { r.serve(c) })
		}
	})
	t.Cleanup(func() { l.Close(); serving.Wait() })
	return r
}

func (r *rank) serve(c net.Conn) {
	defer c.Close()
	in, known := resp.NewReader(c), r.secret == ""
	for {
		cmd, err := in.Next(nil)
		if err != nil {
			return
		}
		args := make([]string, len(cmd.Args))
		for i, a := range cmd.Args {
			args[i] = string(a)
		}
		var out resp.Writer
		switch {
		case args[0] == "AUTH":
			if known = args[len(args)-1] == r.secret; known {
				out.Simple("OK")
			} else {
				out.Error("WRONGPASS invalid password")
			}
		case !known:
			out.Error("NOAUTH Authentication required.")
		default:
			r.answer(&out, args)
		}
		if out.Flush(c) != nil {
			return
		}
	}
}

// answer runs one command as docs/protocol.md has it.
func (r *rank) answer(out *resp.Writer, args []string) {
	s := &fakeSession{r.f}
	switch args[0] {
	case "CASCADE.PROBE":
		hits, _ := s.Probe(context.Background(), args[2:])
		out.Map(3)
		out.BulkString("hits")
		out.Int(int64(hits))
		out.BulkString("bytes")
		out.Int(int64(hits * r.f.blockSize))
		out.BulkString("tiers")
		out.Map(2)
		out.BulkString("shm")
		out.Int(int64(hits - hits/3))
		out.BulkString("lustre")
		out.Int(int64(hits / 3))
	case "CASCADE.GET":
		served, _ := s.GetBatch(context.Background(), args[3:], func(_ int, data []byte, _ string) { out.Bulk(data) })
		if served == 0 {
			out.Null()
		}
	case "CASCADE.PUT":
		r.put(out, s, args)
	case "CASCADE.STATS":
		text, _ := json.Marshal(cascade.Stats{BytesReferenced: 300, BytesStored: 100, Tiers: []cascade.TierStats{
			{Name: "shm", Policy: "prefix", Usage: tiers.Usage{Capacity: 1000}}, {Name: "lustre"}}})
		out.Bulk(text)
	default:
		out.Error("ERR unknown command")
	}
}

func (r *rank) put(out *resp.Writer, s *fakeSession, args []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.oom > 0 {
		r.oom--
		out.Error("OOM no room")
		return
	}
	parent := ""
	for i := 3; i+1 < len(args); i += 2 {
		switch args[i] {
		case "NS":
			r.spaces[args[i+1]] = true
		case "PARENT":
			parent = args[i+1]
		}
	}
	r.parents[args[1]] = parent
	_, _ = s.PutBatch(context.Background(), args[1:2], 0, func(_ int, dst []byte) { copy(dst, args[2]) })
	out.BulkString(strings.Repeat("0", 32))
}

func liveOptions(r *rank, reqs []trace.Request, password string) Options {
	closed := 0
	return Options{
		Trace: func() (trace.Source, error) { return &list{left: reqs, end: io.EOF, closed: &closed}, nil },
		NewTarget: func(context.Context, string) (Target, error) {
			return NewLiveTarget(LiveOptions{Network: "unix", Addr: r.addr, Password: password, BlockBytes: r.f.blockSize}), nil
		},
		BlockBytes: r.f.blockSize,
	}
}

// long is a request of more blocks than a session keeps in flight, then the
// same again with one more.
func long() []trace.Request {
	first := trace.Request{InputTokens: 200 * 512}
	for i := range uint64(200) {
		first.Hashes = append(first.Hashes, i)
	}
	second := trace.Request{InputTokens: 201 * 512, Hashes: append(append([]uint64{}, first.Hashes...), 200)}
	return []trace.Request{first, second}
}

func TestLive(t *testing.T) {
	r := startRank(t, newFake(1000, 0), "sesame", 0)
	results, err := Run(t.Context(), liveOptions(r, long(), "sesame"))
	if err != nil {
		t.Fatal(err)
	}
	got := results[0]
	if got.HitBlocks != 200 || got.PutBlocks != 201 || got.WrongBytes != 0 || got.RejectedBlocks != 0 {
		t.Errorf("%d hits, %d puts, %d wrong bytes, %d rejected; want 200, 201, 0, 0", got.HitBlocks, got.PutBlocks, got.WrongBytes, got.RejectedBlocks)
	}
	if a, b := got.Tiers["shm"].Hits, got.Tiers["lustre"].Hits; a != 134 || b != 66 {
		t.Errorf("%d hits of shm, %d of lustre, want 134 and 66 as probed", a, b)
	}
	if got.Policy != "prefix" || got.CapacityBytes != 1000 || got.StoreDedupRatio != 3 {
		t.Errorf("policy %q, capacity %d, store's dedup ratio %v; want prefix, 1000, 3", got.Policy, got.CapacityBytes, got.StoreDedupRatio)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := appendKeys(nil, []uint64{0, 1, 200, 199})
	if r.parents[keys[0]] != "" || r.parents[keys[1]] != keys[0] || r.parents[keys[2]] != keys[3] {
		t.Errorf("parents are wrong")
	}
	if len(r.spaces) != 1 || !r.spaces["trace/1000"] {
		t.Errorf("namespaces %v, want trace/1000", r.spaces)
	}
}

func TestLiveWrongBlocks(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(string, []byte) []byte
		want   int64
	}{
		"one byte": {func(_ string, d []byte) []byte { d[9]++; return d }, 200},
		"shorter":  {func(_ string, d []byte) []byte { return d[:99] }, 200},
		"longer":   {func(_ string, d []byte) []byte { return append(d, 0) }, 200 * 100},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(100, 0)
			f.damage = c.damage
			results, err := Run(t.Context(), liveOptions(startRank(t, f, "", 0), long(), ""))
			if err != nil {
				t.Fatal(err)
			}
			if got := results[0].WrongBytes; got != c.want {
				t.Errorf("%d wrong bytes, want %d", got, c.want)
			}
		})
	}
}

func TestLiveLosesABlockBetweenProbeAndGet(t *testing.T) {
	f := newFake(100, 0)
	f.drop = appendKeys(nil, []uint64{70})[0]
	results, err := Run(t.Context(), liveOptions(startRank(t, f, "", 0), long(), ""))
	if err != nil {
		t.Fatal(err)
	}
	if r := results[0]; r.HitBlocks != 70 || r.PutBlocks != 200+131 {
		t.Errorf("%d hits, %d puts, want 70 and 331", r.HitBlocks, r.PutBlocks)
	}
}

func TestLiveOutOfRoom(t *testing.T) {
	r := startRank(t, newFake(100, 0), "", 2)
	results, err := Run(t.Context(), liveOptions(r, three, ""))
	if err != nil {
		t.Fatal(err)
	}
	if got := results[0]; got.RejectedBlocks != 2 || got.WrongBytes != 0 {
		t.Errorf("%d rejected, %d wrong bytes, want 2 and 0", got.RejectedBlocks, got.WrongBytes)
	}
}

func TestLiveErrors(t *testing.T) {
	r := startRank(t, newFake(100, 0), "sesame", 0)
	for name, c := range map[string]struct {
		addr, password string
		want           error
		text           string
	}{
		"nobody there":   {r.addr + "x", "", nil, "start cascaded"},
		"wrong password": {r.addr, "open", resp.ErrServer, "WRONGPASS"},
		"no password":    {r.addr, "", resp.ErrServer, "NOAUTH"},
	} {
		t.Run(name, func(t *testing.T) {
			o := liveOptions(r, three, c.password)
			o.NewTarget = func(context.Context, string) (Target, error) {
				return NewLiveTarget(LiveOptions{Network: "unix", Addr: c.addr, Password: c.password, BlockBytes: 100}), nil
			}
			_, err := Run(t.Context(), o)
			if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v, want %q", err, c.text)
			}
		})
	}
}
