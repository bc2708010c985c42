package rank

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
	"cascadekv/dht/members"
	"cascadekv/internal/arena"
	"cascadekv/internal/config"
	"cascadekv/internal/resp"
	"cascadekv/internal/testing/testlog"
	"cascadekv/internal/units"
)

// configOf is a configuration with a small arena and a unix socket in dir.
func configOf(t *testing.T, dir string) config.Config {
	t.Helper()
	c := config.Default()
	c.Socket = filepath.Join(dir, "s")
	c.Shm = config.Shm{Path: filepath.Join(dir, "a.arena"), Bytes: 16 * units.MiB}
	c.Lustre.Index = filepath.Join(dir, "index")
	c.Peers.Listen, c.Peers.Gossip, c.Peers.ReadBuffer = "127.0.0.1:0", "127.0.0.1:0", 4*units.MiB
	return c
}

// live opens and serves a rank; end shuts it down and returns what Serve and
// Shutdown returned.
func live(t *testing.T, c config.Config, log io.Writer) (r *Rank, served <-chan error, end func() error) {
	t.Helper()
	r, err := Open(t.Context(), Options{Config: c, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- r.Serve(context.Background()) }()
	return r, done, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		return r.Shutdown(ctx)
	}
}

func put(t *testing.T, r *Rank, key string, value []byte) {
	t.Helper()
	if _, err := r.Store().Put(t.Context(), cascade.Entry{Namespace: "ns", Key: key}, value, nil); err != nil {
		t.Fatal(err)
	}
}

func has(t *testing.T, r *Rank, key string, value []byte) bool {
	t.Helper()
	v, err := r.Store().Get(t.Context(), "ns", key)
	if err != nil {
		return false
	}
	defer v.Release()
	return bytes.Equal(v.Bytes(), value)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not seen: " + what)
		}
	}
}

// TestRankEndsAndStartsWarm: a rank that ends leaves no arena and no socket, and the
// next one has its blocks from lustre.
func TestRankEndsAndStartsWarm(t *testing.T) {
	dir, value := t.TempDir(), bytes.Repeat([]byte("kv"), 50_000)
	c := configOf(t, dir)
	c.Lustre.Dir, c.Host.Bytes = t.TempDir(), 8*units.MiB
	for i := range 2 {
		r, served, end := live(t, c, io.Discard)
		if i == 0 {
			put(t, r, "k", value)
		} else if !has(t, r, "k", value) {
			t.Error("the second rank has not what the first one stored")
		}
		if conn, err := net.Dial("unix", c.Socket); err != nil {
			t.Error(err)
		} else {
			conn.Close()
		}
		if err := errors.Join(end(), <-served); err != nil {
			t.Fatal(err)
		}
		for _, left := range []string{c.Socket, c.Shm.Path} {
			if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is left: %v", left, err)
			}
		}
	}
}

// TestRankSaysItsConfiguration: whoever judges a rank from beside it reads what is in force there.
func TestRankSaysItsConfiguration(t *testing.T) {
	c := configOf(t, t.TempDir())
	_, served, end := live(t, c, io.Discard)
	client, err := resp.Dial("unix", c.Socket, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := client.Do("CONFIG", "GET", "shm.*", "socket")
	client.Close()
	texts := map[string]string{}
	for at := 0; at+1 < len(reply.Elems); at += 2 {
		texts[string(reply.Elems[at].Str)] = string(reply.Elems[at+1].Str)
	}
	if want := c.Texts(); err != nil || texts["shm.bytes"] != want["shm.bytes"] || texts["shm.path"] != c.Shm.Path || texts["socket"] != c.Socket {
		t.Errorf("%v, %v", texts, err)
	}
	if err := errors.Join(end(), <-served); err != nil {
		t.Fatal(err)
	}
}

// TestRanksAdopt: two ranks share their blocks, and the one that stays reads those
// of the one that has left from lustre.
func TestRanksAdopt(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("0123456789abcdef0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lustre, value := t.TempDir(), bytes.Repeat([]byte("kv"), 50_000)
	configs := []config.Config{configOf(t, t.TempDir()), configOf(t, t.TempDir())}
	var ranks []*Rank
	var ends []func() error
	for i := range configs {
		c := &configs[i]
		c.Rank, c.Lustre.Dir, c.Peers.Fabric, c.Peers.Munge, c.Peers.SecretFile = i, lustre, "tcp", "off", secret
		if i > 0 {
			c.Peers.Seeds = ranks[0].peers.GossipAddr()
		}
		r, _, end := live(t, *c, io.Discard)
		ranks, ends = append(ranks, r), append(ends, end)
	}
	put(t, ranks[1], "k", value)
	eventually(t, "a block of the other rank", func() bool { return has(t, ranks[0], "k", value) })
	if err := ends[1](); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a block of the rank that left", func() bool { return has(t, ranks[0], "k", value) })
	if err := ends[0](); err != nil {
		t.Fatal(err)
	}
}

// TestRanksThatStartTogetherAdoptTogether: the first of ranks that start together does not adopt, while it waits
// for the others, what falls to them.
func TestRanksThatStartTogetherAdoptTogether(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("0123456789abcdef0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lustre, value := t.TempDir(), bytes.Repeat([]byte("kv"), 50_000)
	before := configOf(t, t.TempDir())
	before.Rank, before.Lustre.Dir = 7, lustre
	r, served, end := live(t, before, io.Discard)
	put(t, r, "k", value)
	if err := errors.Join(end(), <-served); err != nil {
		t.Fatal(err)
	}
	var log testlog.Log
	var ranks []*Rank
	var ends []func() error
	began := time.Now()
	for i := range 2 {
		c := configOf(t, t.TempDir())
		c.Rank, c.Lustre.Dir, c.Peers.Fabric, c.Peers.Munge, c.Peers.SecretFile, c.Peers.Ranks = i, lustre, "tcp", "off", secret, 2
		to := io.Writer(&log)
		if i > 0 {
			time.Sleep(adoptQuiet + time.Second)
			c.Peers.Seeds, to = ranks[0].peers.GossipAddr(), io.Discard
		}
		r, _, end := live(t, c, to)
		ranks, ends = append(ranks, r), append(ends, end)
	}
	eventually(t, "the other rank", func() bool { return log.Has("member joined") })
	late := time.Since(began) > members.StartFor // on a machine with other things to do: nothing was waited for
	for _, r := range ranks {
		eventually(t, "a block of an earlier job", func() bool { return has(t, r, "k", value) })
	}
	met, adopted := strings.Index(log.String(), "member joined"), strings.Index(log.String(), "catalogue index: updated")
	if adopted >= 0 && adopted < met && !late {
		t.Errorf("it adopted before it knew of the other rank:\n%s", &log)
	}
	if err := errors.Join(ends[1](), ends[0]()); err != nil {
		t.Fatal(err)
	}
}

// TestFailedOpenLeavesNothing: neither an arena nor a lock on one stays of a start
// that failed, whatever of it failed.
func TestFailedOpenLeavesNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, harm := range map[string]func(*config.Config){
		"lustre": func(c *config.Config) { c.Lustre.Dir = file },
		"peers":  func(c *config.Config) { c.Peers.Fabric, c.Peers.Listen = "tcp", "nowhere" },
		"server": func(c *config.Config) { c.Listen = "256.0.0.1:0" },
	} {
		c := configOf(t, t.TempDir())
		good := c
		harm(&c)
		if _, err := Open(t.Context(), Options{Config: c, Log: slog.New(slog.DiscardHandler)}); err == nil {
			t.Errorf("%s: it was opened", name)
		}
		if _, err := os.Stat(c.Shm.Path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: an arena is left: %v", name, err)
		}
		_, served, end := live(t, good, io.Discard)
		if err := errors.Join(end(), <-served); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLostArenaEndsServe: without a function that restarts the program, Serve
// returns that the arena is lost.
func TestLostArenaEndsServe(t *testing.T) {
	c, log := configOf(t, t.TempDir()), &testlog.Log{}
	r, served, _ := live(t, c, log) // the end of a rank may touch the arena
	if err := r.levels.arena.tier.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(c.Shm.Path, 0); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-served:
		if !errors.Is(err, arena.ErrLost) {
			t.Errorf("got %v, want %v", err, arena.ErrLost)
		}
	case <-time.After(time.Minute):
		t.Fatal("it goes on")
	}
	r.work.end()
}
