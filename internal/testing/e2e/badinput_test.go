package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/resp"
)

// say sends raw bytes on a connection of its own and returns everything that
// comes back until the rank closes it.
func (r *rank) say(t *testing.T, raw string) string {
	t.Helper()
	c, err := net.Dial("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, raw); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("the connection stays open after %q: %v", answer, err)
	}
	return string(answer)
}

func TestMalformedRequests(t *testing.T) {
	r := start(t, newPlace(t, "64MiB"))
	c := r.dial(t)
	if err := c.Set("k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	for name, raw := range map[string]string{
		"count is no number":    "*x\r\n",
		"too many arguments":    "*1048577\r\n",
		"not a bulk":            "*2\r\n$3\r\nGET\r\n:1\r\n",
		"negative length":       "*2\r\n$3\r\nGET\r\n$-5\r\n",
		"bulk above 512 MiB":    "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870913\r\n",
		"value without its end": "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\nabcdef\r\n",
		"open quote":            "GET \"k\r\n",
		"endless line":          strings.Repeat("x", 64<<10) + "\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			answer := r.say(t, raw)
			if !strings.HasPrefix(answer, "-ERR Protocol error: ") || !strings.Contains(answer, " at byte ") {
				t.Errorf("got %q, want a protocol error with its place", answer)
			}
			wantValue(t, c, "k", "v")
		})
	}
}

// TestValueLargerThanTheRank checks that the connection survives what can
// never be stored.
func TestValueLargerThanTheRank(t *testing.T) {
	r := start(t, newPlace(t, "16MiB"))
	c := r.dial(t)
	if err := c.Set("k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	err := c.Set("big", make([]byte, 64<<20))
	if !errors.Is(err, resp.ErrServer) {
		t.Fatalf("got %v, want an error reply", err)
	}
	wantWords(t, err.Error(), "never fit", "shm.bytes")
	wantValue(t, c, "k", "v")
	wantValue(t, r.dial(t), "k", "v")
}

// TestTruncatedSegment cuts a segment at several places; what lies before the
// cut must still be there, and nothing may be wrong.
func TestTruncatedSegment(t *testing.T) {
	for name, keep := range map[string]func(size int64) int64{
		"footer cut":  func(size int64) int64 { return size - 100 },
		"half":        func(size int64) int64 { return size/2 + 77 },
		"header only": func(int64) int64 { return 4096 },
		"empty":       func(int64) int64 { return 0 },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, "64MiB").withLustre()
			r := start(t, p)
			c := r.dial(t)
			const blocks, most = 100, 64 << 10
			for i := range blocks {
				key := "k" + strconv.Itoa(i)
				if err := c.Set(key, content(key, 1, most)); err != nil {
					t.Fatal(err)
				}
				if i%10 != 9 {
					continue
				}
				if _, err := c.Do("CASCADE.DRAIN"); err != nil { // one frame of the file
					t.Fatal(err)
				}
			}
			r.signal(t, syscall.SIGTERM)
			wantStatus(t, r.status(t), 0, r.stderr)
			p.wantNoArena(t)
			path := onlySegment(t, p.lustre)
			st, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			share := float64(keep(st.Size())) / float64(st.Size())
			if err := os.Truncate(path, keep(st.Size())); err != nil {
				t.Fatal(err)
			}

			after := start(t, p)
			c = after.dial(t)
			present, room := 0, make([]byte, most+64)
			for i := range blocks {
				key := "k" + strconv.Itoa(i)
				n, err := c.Get(key, room)
				if errors.Is(err, resp.ErrNull) {
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if string(room[:n]) != string(content(key, 1, most)) {
					t.Errorf("%s has wrong bytes", key)
				}
				present++
			}
			t.Logf("%.0f %% of the file kept, %d of %d blocks present", 100*share, present, blocks)
			// One frame may be cut, and frames differ in size.
			if least := int(blocks*share) - 30; present < least || share > 0.99 && present < blocks {
				t.Errorf("%d of %d blocks are present, want at least %d: most lie before the cut", present, blocks, least)
			}
			after.untilSays(t, path)
			if share > 0 {
				after.untilSays(t, "no footer", "cascade fsck")
			}
			if err := c.Set("new", []byte("value")); err != nil {
				t.Error(err)
			}
		})
	}
}

func onlySegment(t *testing.T, dir string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*", "agg_rank*.bin"))
	if err != nil || len(found) != 1 {
		t.Fatalf("found %v, %v; want one segment", found, err)
	}
	return found[0]
}

// TestRefusedStarts lists what a rank does not start with, and what it says.
func TestRefusedStarts(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	unknown := file("unknown.toml", "rank = 1\n\n[shm]\nbites = \"1GiB\"\n")
	for name, c := range map[string]struct {
		args   []string
		status int
		words  []string
	}{
		"unknown key":     {[]string{"--config", unknown}, 2, []string{unknown + ":4", `"shm.bites"`, `"shm.bytes"`}},
		"no such file":    {[]string{"--config", dir + "/none"}, 2, []string{dir + "/none"}},
		"bad value":       {[]string{"--shm-bytes", "lots"}, 2, []string{"shm.bytes", "lots", "4GiB"}},
		"unknown flag":    {[]string{"--shm-bites", "1GiB"}, 2, []string{"--shm-bites", "--help"}},
		"unknown policy":  {[]string{"--policy", "fifo"}, 2, []string{"policy", "fifo", "prefix"}},
		"arena elsewhere": {[]string{"--shm-path", dir + "/none/arena"}, 1, []string{dir + "/none/arena"}},
		"open to others":  {[]string{"--listen", "0.0.0.0:0"}, 2, []string{"listen", "password_file"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, "16MiB")
			r := launch(t, p, c.args...)
			wantStatus(t, r.status(t), c.status, r.stderr)
			wantWords(t, r.stderr.String(), c.words...)
		})
	}
}

// TestMoreThanShmHas asks for more shared memory than there is, first with
// nothing there, which is refused, and then over an arena that holds blocks, which
// serves with the size it has.
func TestMoreThanShmHas(t *testing.T) {
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err != nil {
		t.Fatal(err)
	}
	tooMuch := strconv.FormatInt(int64(st.Blocks)*st.Bsize+1<<30, 10)
	t.Run("new arena", func(t *testing.T) {
		p := newPlace(t, tooMuch)
		r := launch(t, p)
		wantStatus(t, r.status(t), 1, r.stderr)
		wantWords(t, r.stderr.String(), "/dev/shm", "--shm-bytes", tooMuch)
		if _, err := os.Stat(p.arena); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the arena file is left behind: %v", err)
		}
	})
	t.Run("arena with blocks", func(t *testing.T) {
		p := newPlace(t, "64MiB")
		r := start(t, p)
		if err := r.dial(t).Set("k", []byte("v")); err != nil {
			t.Fatal(err)
		}
		r.kill()
		larger := p
		larger.shm = tooMuch
		again := start(t, larger)
		again.untilSays(t, "arena file keeps its size", p.arena)
		wantValue(t, again.dial(t), "k", "v")
	})
}

func TestWrongTraceLine(t *testing.T) {
	good := `{"timestamp":0,"input_length":10,"output_length":1,"hash_ids":[1]}`
	for name, c := range map[string]struct {
		line string
		word string
	}{
		"not JSON":          {`{"timestamp":`, "line 2"},
		"no hash ids":       {`{"timestamp":0,"input_length":10,"output_length":1}`, "hash_ids"},
		"text for a number": {`{"timestamp":0,"input_length":"ten","output_length":1,"hash_ids":[1]}`, "input_length"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "trace.jsonl")
			if err := os.WriteFile(path, fmt.Appendf(nil, "%s\n%s\n", good, c.line), 0o600); err != nil {
				t.Fatal(err)
			}
			status, out, said := finish(t, program("cascade"), "trace", "replay", "--trace", path, "--block-bytes", "4KiB", "--no-lustre", "--capacity", "100%", "--json")
			if status == 0 || out != "" {
				t.Errorf("status %d, printed %q on standard output; want a failure and nothing", status, out)
			}
			wantWords(t, said, path, "line 2", c.word)
		})
	}
}
