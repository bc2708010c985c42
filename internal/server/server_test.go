package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cascadekv/cascade"
	"cascadekv/internal/netio"
	"cascadekv/internal/resp"
	"cascadekv/internal/testing/noise"
	"cascadekv/tiers"
	"cascadekv/tiers/memory"
	"cascadekv/tiers/shm"
)

// rig is a server on both kinds of socket over a store of one shm tier.
type rig struct {
	t     testing.TB
	sock  string
	mem   *memory.Tier
	store *cascade.Store
	srv   *Server
}

func newRig(t testing.TB, shmBytes int64, change ...func(*Options)) *rig {
	t.Helper()
	return newRigOver(t, shmBytes, nil, change...)
}

// memoryDir is a folder on a memory file system.
func memoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "cascade-server-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// newRigOver makes a rig with a cold tier.
func newRigOver(t testing.TB, shmBytes int64, cold tiers.Files, change ...func(*Options)) *rig {
	t.Helper()
	return newRigWith(t, shmBytes, func(o *cascade.Options) { o.Cold = cold }, change...)
}

// newRigWith makes a rig of other levels.
func newRigWith(t testing.TB, shmBytes int64, levels func(*cascade.Options), change ...func(*Options)) *rig {
	t.Helper()
	dir := t.TempDir()
	r := &rig{t: t, sock: filepath.Join(dir, "s")}
	quiet := slog.New(slog.DiscardHandler)
	var err error
	if r.mem, err = shm.Open(filepath.Join(memoryDir(t), "a"), shmBytes); err != nil {
		t.Fatal(err)
	}
	// A busy machine keeps blocks pinned for long.
	all := cascade.Options{Memory: []tiers.Memory{r.mem}, Log: quiet, Limits: cascade.Limits{RoomDeadline: 30 * time.Second}}
	levels(&all)
	r.store, err = cascade.Open(context.Background(), all)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Store: r.store, Socket: r.sock, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Version: "test", Log: quiet, ZeroCopy: true, Spin: 50 * time.Microsecond,
		Limits: Limits{MaxConnections: 100, Lease: time.Minute, FixedMiss: true}}
	for _, f := range change {
		f(&o)
	}
	if r.srv, err = New(o); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- r.srv.Serve(context.Background()) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := r.srv.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		n := r.store.Stats().Views
		for i := 0; n != 0 && i < 1000; i++ { // the completer has a view of its own, now and then for a moment
			time.Sleep(5 * time.Millisecond)
			n = r.store.Stats().Views
		}
		if n != 0 {
			t.Errorf("%d views are left", n)
		}
		if err := r.store.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return r
}

func (r *rig) client(network string) *resp.Client {
	r.t.Helper()
	addr := r.sock
	if network == "tcp" {
		addr = r.srv.Addr().String()
	}
	c, err := resp.Dial(network, addr, 20*time.Second)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return c
}

// raw is a connection that speaks bytes.
func (r *rig) raw(network string) (net.Conn, *bufio.Reader) {
	r.t.Helper()
	addr := r.sock
	if network == "tcp" {
		addr = r.srv.Addr().String()
	}
	c, err := net.Dial(network, addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c, bufio.NewReader(c)
}

func randomBytes(seed uint64, n int) []byte { return noise.Bytes(seed, n) }

func TestValuesOfEverySizeComeBack(t *testing.T) {
	r := newRig(t, 64<<20)
	for _, network := range []string{"unix", "tcp"} {
		c := r.client(network)
		for i, size := range []int{0, 1, 4095, 16 << 10, 16<<10 + 1, 128<<10 - 1, 128 << 10, 512<<10 + 1, 2 << 20, 9<<20 + 7} {
			p, key := randomBytes(uint64(size), size), fmt.Sprint(network, i)
			if err := c.Set(key, p); err != nil {
				t.Fatalf("%s: SET of %d bytes: %v", network, size, err)
			}
			got := make([]byte, size)
			if n, err := c.Get(key, got); err != nil || n != size || !bytes.Equal(got, p) {
				t.Fatalf("%s: GET of %d bytes: %d, %v", network, size, n, err)
			}
		}
	}
}

func TestPipelineMixesLargeAndSmall(t *testing.T) {
	r := newRig(t, 64<<20)
	c := r.client("unix")
	big := randomBytes(1, 3<<20)
	c.Send("SET", "small", "x")
	c.SendValue(2, big, "SET", "big")
	for range 5 {
		c.Send("GET", "small")
		c.Send("GET", "big")
		c.Send("GET", "absent")
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.ReceiveOK(); err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]byte, len(big))
	for range 5 {
		if n, err := c.ReceiveInto(buf); err != nil || string(buf[:n]) != "x" {
			t.Fatal(n, err)
		}
		if n, err := c.ReceiveInto(buf); err != nil || !bytes.Equal(buf[:n], big) {
			t.Fatal(n, err)
		}
		if _, err := c.ReceiveInto(buf); !errors.Is(err, resp.ErrNull) {
			t.Fatal(err)
		}
	}
}

// flip changes one byte of a stored value behind the store's back.
func (r *rig) flip(key string) {
	r.t.Helper()
	v, err := r.store.Get(context.Background(), "redis/0", key, cascade.Unverified)
	if err != nil {
		r.t.Fatal(err)
	}
	defer v.Release()
	v.Bytes()[v.Size()/3] ^= 0x40
}

func TestCorruptValueIsNeverDelivered(t *testing.T) {
	t.Run("small: a miss", func(t *testing.T) {
		r := newRig(t, 16<<20)
		c := r.client("unix")
		c.Set("k", randomBytes(1, 1000))
		r.flip("k")
		if _, err := c.Get("k", make([]byte, 1000)); !errors.Is(err, resp.ErrNull) {
			t.Errorf("GET: %v, want null", err)
		}
		if rep, err := c.Do("EXISTS", "k"); err != nil || rep.Int != 0 {
			t.Errorf("EXISTS: %v, %v", rep.Int, err)
		}
	})
	t.Run("large: the stream ends before the value does", func(t *testing.T) {
		r := newRig(t, 16<<20)
		c := r.client("unix")
		c.Set("k", randomBytes(1, 3<<20))
		r.flip("k")
		if _, err := c.Get("k", make([]byte, 3<<20)); err == nil || errors.Is(err, resp.ErrNull) {
			t.Errorf("GET: %v, want a connection that ended", err)
		}
		if rep, err := r.client("unix").Do("EXISTS", "k"); err != nil || rep.Int != 0 {
			t.Errorf("EXISTS: %v, %v", rep.Int, err)
		}
	})
	t.Run("fixed-length client: a miss of the right length", func(t *testing.T) {
		r := newRig(t, 16<<20)
		c, rd := r.raw("tcp")
		key, p := "model@01000100@0@abcd", randomBytes(1, 3<<20)
		fmt.Fprintf(c, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(key), key, len(p), p)
		if line, err := rd.ReadString('\n'); line != "+OK\r\n" {
			t.Fatal(line, err)
		}
		r.flip(key)
		fmt.Fprintf(c, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", len(key), key)
		line, err := rd.ReadString('\n')
		if want := len(fmt.Sprintf("$%d\r\n", len(p))); err != nil || len(line) != want || line[0] != '-' {
			t.Errorf("GET answers %q (%v), want an error of %d bytes", line, err, want)
		}
	})
}

// TestLeasesEndWithTheConnection: what a client was promised is held for nobody
// once it has gone.
func TestLeasesEndWithTheConnection(t *testing.T) {
	r := newRig(t, 16<<20)
	c := r.client("unix")
	if err := c.Set("k", randomBytes(1, 1000)); err != nil {
		t.Fatal(err)
	}
	if rep, err := c.Do("CASCADE.PROBE", "redis/0", "k"); err != nil {
		t.Fatal(rep, err)
	}
	if n := r.store.Stats().Leases; n != 0 {
		t.Errorf("%d leases after SET and PROBE", n)
	}
	if rep, err := c.Do("EXISTS", "k"); err != nil || rep.Int != 1 || r.store.Stats().Leases != 1 {
		t.Fatalf("EXISTS %v, %v; %d leases", rep.Int, err, r.store.Stats().Leases)
	}
	c.Close()
	eventually(t, "the lease ends", func() bool { return r.store.Stats().Leases == 0 })
}

func TestConnectionsParkAndWake(t *testing.T) {
	r := newRig(t, 16<<20)
	var clients []*resp.Client
	for range 60 {
		clients = append(clients, r.client("unix"))
	}
	for round := range 3 {
		time.Sleep(20 * time.Millisecond) // long enough that all are parked
		var wg sync.WaitGroup
		for i, c := range clients {
			wg.Go(func() {
				key, p := fmt.Sprint(i), randomBytes(uint64(round), 5000)
				if err := c.Set(key, p); err != nil {
					t.Error(err)
				}
				got := make([]byte, 5000)
				if _, err := c.Get(key, got); err != nil || !bytes.Equal(got, p) {
					t.Errorf("GET: %v", err)
				}
			})
		}
		wg.Wait()
	}
	for _, c := range clients {
		c.Close()
	}
	for range 2000 {
		if r.srv.connections() == 0 {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Errorf("%d connections are left after their clients went", r.srv.connections())
}

func TestMissOfUnknownSizeEndsAFixedLengthConnection(t *testing.T) {
	r := newRig(t, 16<<20)
	c, rd := r.raw("tcp")
	key := "model@01000100@0@abcd"
	fmt.Fprintf(c, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", len(key), key)
	if line, err := rd.ReadString('\n'); line != "$-1\r\n" {
		t.Fatal(line, err)
	}
	if _, err := rd.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the connection goes on: %v", err)
	}
}

func TestPasswordIsAsked(t *testing.T) {
	r := newRig(t, 16<<20, func(o *Options) { o.Limits.Password = "s3cret" })
	c := r.client("unix")
	code := func(args ...string) string {
		_, err := c.Do(args...)
		var se *resp.ServerError
		if errors.As(err, &se) {
			return se.Code()
		}
		return fmt.Sprint(err)
	}
	for _, step := range []struct {
		args []string
		want string
	}{
		{[]string{"GET", "k"}, "NOAUTH"},
		{[]string{"SET", "k", strings.Repeat("v", 10_000)}, "NOAUTH"},
		{[]string{"CASCADE.STATS"}, "NOAUTH"},
		{[]string{"HELLO", "3"}, "NOAUTH"},
		{[]string{"AUTH", "wrong"}, "WRONGPASS"},
		{[]string{"AUTH", "other", "s3cret"}, "WRONGPASS"},
		{[]string{"AUTH", "default", "s3cret"}, "<nil>"},
		{[]string{"SET", "k", "v"}, "<nil>"},
		{[]string{"RESET"}, "<nil>"},
		{[]string{"GET", "k"}, "NOAUTH"},
		{[]string{"HELLO", "3", "AUTH", "default", "s3cret"}, "<nil>"},
		{[]string{"GET", "k"}, "<nil>"},
	} {
		if got := code(step.args...); got != step.want {
			t.Errorf("%.40v: %s, want %s", step.args, got, step.want)
		}
	}
	c = r.client("unix")
	if got := code("SET", "k", strings.Repeat("v", 100_000)); got != "NOAUTH" {
		t.Errorf("a large value: %s, want NOAUTH", got)
	}
}

func TestTooManyConnectionsAreTold(t *testing.T) {
	r := newRig(t, 16<<20, func(o *Options) { o.Limits.MaxConnections = 2 })
	r.client("unix").Do("PING")
	r.client("unix").Do("PING")
	_, rd := r.raw("unix")
	if line, err := rd.ReadString('\n'); !strings.HasPrefix(line, "-ERR max number of clients") {
		t.Errorf("%q, %v", line, err)
	}
}

func TestSocketIsPrivate(t *testing.T) {
	r := newRig(t, 16<<20)
	st, err := os.Stat(r.sock)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	open := t.TempDir()
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := netio.ListenUnix(netio.UnixOptions{Path: filepath.Join(open, "s"), Log: slog.Default()}); !errors.Is(err, netio.ErrUnsafeSocket) {
		t.Errorf("a directory that others may change: %v", err)
	}
	if _, err := netio.ListenUnix(netio.UnixOptions{Path: r.sock, Log: slog.Default()}); err == nil || !strings.Contains(err.Error(), "another rank") {
		t.Errorf("a socket in use: %v", err)
	}
}
