package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/resp"
)

// regionClient is a connection with a region.
type regionClient struct {
	c      *resp.Client
	mem    []byte
	region string
	next   int
}

// attachRegion connects with a memfd of size bytes.
func attachRegion(t *testing.T, r *rank, size int) *regionClient {
	t.Helper()
	fd, err := unix.MemfdCreate("region", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, int64(size))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	conn, err := net.Dial("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = conn.(*net.UnixConn).WriteMsgUnix([]byte("*2\r\n$14\r\nCASCADE.REGION\r\n$2\r\nFD\r\n"), unix.UnixRights(fd), nil)
	if err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 64)
	n, err := conn.Read(answer)
	if err != nil || answer[0] != ':' {
		t.Fatalf("REGION: %q, %v", answer[:n], err)
	}
	g := &regionClient{c: resp.NewClient(conn, patience), mem: mem, region: strings.TrimSpace(string(answer[1:n]))}
	t.Cleanup(func() { g.c.Close() })
	return g
}

// job has blocks of size bytes from offset on moved, and waits for that.
func (g *regionClient) job(verb string, offset, size int, keys []string) ([]byte, error) {
	var extents []byte
	for i := range keys {
		extents = append(extents, extent(offset+i*size, size)...)
	}
	g.next++
	number := strconv.Itoa(g.next)
	words := append([]string{"CASCADE." + verb, g.region, "jobs", string(extents), "JOB", number, "KEYS"}, keys...)
	if a, err := g.c.Do(words...); err != nil || a.Text() != "QUEUED" {
		return nil, fmt.Errorf("%q, %w", a.Text(), err)
	}
	for {
		done, err := g.c.Do("CASCADE.DONE", "500")
		switch {
		case err != nil:
			return nil, err
		case len(done.Elems) == 0:
			continue
		case len(done.Elems) != 1 || done.Elems[0].Elems[0].Text() != number:
			return nil, fmt.Errorf("DONE tells %v", done)
		}
		return done.Elems[0].Elems[1].Str, nil
	}
}

// extent is one of a command.
func extent(offset, size int) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(offset)), uint64(size))
}

// holder is a client that holds blocks of all kinds in the arena.
type holder struct {
	t      *testing.T
	c      *resp.Client
	arena  []byte // the file, written to by filling stages only
	views  []heldRange
	stages []heldRange
	pins   int64
}

type heldRange struct {
	number, offset int64
	want           []byte
}

const heldSpace = "redis/0"

// hold takes views of blocks that stay, are replaced and are deleted, stages, and
// pins: small ones, which share pages, and large ones.
func hold(t *testing.T, r *rank) *holder {
	t.Helper()
	h := &holder{t: t, c: r.dial(t)}
	f, err := os.OpenFile(r.arena, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if h.arena, err = unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(h.arena) })
	for i, size := range []int{0, 100, 3000, 40 << 10, 700 << 10} {
		for _, fate := range []string{"stays", "replaced", "deleted", "twice"} {
			h.view(fmt.Sprintf("view-%s-%d", fate, i), fate, size)
		}
		h.stage(max(size, 1))
		key := fmt.Sprintf("pin-%d", i)
		h.do("SET", key, string(bytesOf(key, size)))
		h.pins += h.do("CASCADE.PIN", heldSpace, key).Int
	}
	h.check()
	return h
}

func (h *holder) do(words ...string) resp.Reply {
	h.t.Helper()
	r, err := h.c.Do(words...)
	if err != nil {
		h.t.Fatalf("%s: %v", words[0], err)
	}
	return r
}

func (h *holder) view(key, fate string, size int) {
	h.t.Helper()
	want := bytesOf(key, size)
	h.do("SET", key, string(want))
	again := 1
	if fate == "twice" {
		again = 2
	}
	for range again {
		v := h.do("CASCADE.GETSHM", heldSpace, key).Elems[0]
		if len(v.Elems) != 5 {
			h.t.Fatalf("GETSHM %s: %v", key, v)
		}
		h.views = append(h.views, heldRange{v.Elems[0].Int, v.Elems[1].Int, want})
	}
	switch fate {
	case "replaced":
		h.do("SET", key, "another value")
	case "deleted":
		h.do("DEL", key)
	}
}

func (h *holder) stage(size int) {
	h.t.Helper()
	st := h.do("CASCADE.STAGE", strconv.Itoa(size)).Elems[0]
	if len(st.Elems) != 2 {
		h.t.Fatalf("STAGE %d: %v", size, st)
	}
	x := heldRange{st.Elems[0].Int, st.Elems[1].Int, bytesOf(fmt.Sprintf("stage-%d", size), size)}
	copy(h.arena[x.offset:], x.want[:size/2]) // the rest comes later
	h.stages = append(h.stages, x)
}

// check compares all that is held with what was there at first.
func (h *holder) check() {
	h.t.Helper()
	for _, v := range h.views {
		if !bytes.Equal(h.arena[v.offset:v.offset+int64(len(v.want))], v.want) {
			h.t.Errorf("view %d, %d bytes at %d, has changed", v.number, len(v.want), v.offset)
		}
	}
	for _, st := range h.stages {
		if half := len(st.want) / 2; !bytes.Equal(h.arena[st.offset:st.offset+int64(half)], st.want[:half]) {
			h.t.Errorf("stage %d, %d bytes at %d, has changed", st.number, len(st.want), st.offset)
		}
	}
}

// giveBack fills and commits the stages, and ends all that is held.
func (h *holder) giveBack() {
	h.t.Helper()
	for _, st := range h.stages {
		half := len(st.want) / 2
		copy(h.arena[st.offset+int64(half):], st.want[half:])
		key := fmt.Sprintf("committed-%d", st.number)
		h.do("CASCADE.COMMIT", strconv.FormatInt(st.number, 10), heldSpace, key)
		wantValue(h.t, h.c, key, string(st.want))
	}
	for i := range int(h.pins) {
		key := fmt.Sprintf("pin-%d", i)
		if n := h.do("CASCADE.UNPIN", heldSpace, key).Int; n != 1 {
			h.t.Errorf("%d pins of %s", n, key)
		}
	}
	for _, v := range h.views {
		if n := h.do("CASCADE.RELEASE", strconv.FormatInt(v.number, 10)).Int; n != 1 {
			h.t.Errorf("%d views are number %d", n, v.number)
		}
	}
}

// holdings is what INFO says that all clients hold: bytes, and how many of each
// kind.
func holdings(t *testing.T, r *rank) map[string]int64 {
	t.Helper()
	c := r.dial(t)
	defer c.Close()
	info, err := c.Do("INFO", "cascade")
	if err != nil {
		t.Fatal(err)
	}
	held := map[string]int64{}
	for line := range strings.Lines(info.Text()) {
		kind, digits, ok := strings.Cut(strings.TrimSpace(line), ":")
		if kind, is := strings.CutPrefix(kind, "cascade_held_"); ok && is {
			if held[kind], err = strconv.ParseInt(digits, 10, 64); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(held) != 4 {
		t.Fatalf("INFO tells %v", held)
	}
	return held
}

// nothing is what holdings returns when no client holds anything.
var nothing = map[string]int64{"bytes": 0, "views": 0, "pins": 0, "stages": 0}

var listens = regexp.MustCompile(`msg=listening .*network=(\w+) address=(\S+)`)

// listening is the address of a listener of a rank, as it logs it.
func listening(t *testing.T, r *rank, network string) (address string) {
	t.Helper()
	until(t, "address of "+network, func() bool {
		for _, m := range listens.FindAllStringSubmatch(r.stderr.String(), -1) {
			if m[1] == network {
				address = m[2]
			}
		}
		return address != ""
	})
	return address
}

// healthy asks the rank's HTTP side, with a connection of its own.
func healthy(address string) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	a, err := client.Get("http://" + address + "/healthz")
	if err != nil {
		return err
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		return fmt.Errorf("healthz: %s", a.Status)
	}
	time.Sleep(5 * time.Millisecond)
	return nil
}
