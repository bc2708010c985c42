package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/resp"
)

// fakeRank answers the commands that the tool sends, from a map.
type fakeRank struct {
	mu       sync.Mutex
	values   map[string]string // by namespace and key
	asked    [][]string
	stats    string
	config   map[string]string // the answer to CONFIG GET
	why      string            // the answer to CASCADE.WHY
	known    string            // the id that it takes without the bytes; "": it knows no such command
	password string
}

func startRank(t *testing.T, f *fakeRank) (socket string) {
	t.Helper()
	f.values = map[string]string{}
	socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { f.serve(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	return socket
}

func (f *fakeRank) serve(conn net.Conn) {
	defer conn.Close()
	r, authenticated := resp.NewReader(conn), f.password == ""
	for {
		command, err := r.Next(nil)
		if err != nil {
			return
		}
		args := make([]string, len(command.Args))
		for i, a := range command.Args {
			args[i] = string(a)
		}
		var w resp.Writer
		switch {
		case args[0] == "AUTH":
			if authenticated = args[1] == f.password; authenticated {
				w.Simple("OK")
			} else {
				w.Error("WRONGPASS no")
			}
		case !authenticated:
			w.Error("NOAUTH Authentication required.")
		default:
			f.answer(&w, args)
		}
		if w.Flush(conn) != nil {
			return
		}
	}
}

func (f *fakeRank) answer(w *resp.Writer, args []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, args)
	switch args[0] {
	case "CONFIG":
		w.Map(len(f.config))
		for k, v := range f.config {
			w.BulkString(k)
			w.BulkString(v)
		}
	case "CASCADE.STATS":
		w.Bulk([]byte(f.stats))
	case "CASCADE.WHY":
		w.BulkString(f.why)
	case "CASCADE.PUT":
		space := redisNamespace
		for i, a := range args {
			if a == "NS" {
				space = args[i+1]
			}
		}
		f.values[space+"\x00"+args[1]] = args[2]
		w.BulkString(block.Sum(block.Bits128, []byte(args[2])).String())
	case "CASCADE.ALIAS":
		switch f.known {
		case "":
			w.Error("ERR unknown command 'CASCADE.ALIAS'")
		case args[2]:
			w.BulkString(args[2])
		default:
			w.Null()
		}
	case "CASCADE.GET":
		space := redisNamespace
		if args[1] == "NS" {
			space, args = args[2], args[2:]
		}
		if v, ok := f.values[space+"\x00"+args[1]]; ok {
			w.BulkString(v)
		} else {
			w.Null()
		}
	case "CASCADE.SCAN": // one key an answer
		var keys []string
		for name := range f.values {
			if space, key, _ := strings.Cut(name, "\x00"); space == args[1] {
				keys = append(keys, key)
			}
		}
		slices.Sort(keys)
		at, _ := strconv.Atoi(args[2])
		next := "0"
		if at+1 < len(keys) {
			next = strconv.Itoa(at + 1)
		}
		w.Array(2)
		w.BulkString(next)
		keys = keys[min(at, len(keys)):min(at+1, len(keys))]
		w.Array(len(keys))
		for _, k := range keys {
			w.BulkString(k)
		}
	case "CASCADE.CLEAR":
		w.Simple("OK")
	case "CASCADE.PROBE":
		hits, size := 0, 0
		for _, key := range args[2:] {
			v, ok := f.values[args[1]+"\x00"+key]
			if !ok {
				break
			}
			hits, size = hits+1, size+len(v)
		}
		w.Map(3)
		w.BulkString("hits")
		w.Int(int64(hits))
		w.BulkString("bytes")
		w.Int(int64(size))
		w.BulkString("tiers")
		w.Map(1)
		w.BulkString("shm")
		w.Int(int64(hits))
	default:
		w.Error("ERR unknown command")
	}
}

func (f *fakeRank) last() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[len(f.asked)-1]
}

// outcome is what one command line did.
type outcome struct {
	status   int
	out, err string
}

// shmDir is where the tests' arenas go; TestMain makes it, and complains about
// what is left in it.
var shmDir string

func TestMain(m *testing.M) {
	status := 1
	dir, err := os.MkdirTemp("/dev/shm", "cascade-test-")
	if err == nil {
		shmDir = dir
		status = m.Run()
		if err = os.Remove(dir); err != nil && status == 0 {
			status = 1
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "arenas of tests:", err)
	}
	os.Exit(status)
}

func cascadeCommand(in string, env []string, args ...string) outcome {
	var stdout, stderr bytes.Buffer
	a := &app{in: strings.NewReader(in), out: &stdout, err: &stderr, env: env, shmDir: shmDir}
	status := a.run(context.Background(), args)
	return outcome{status, stdout.String(), stderr.String()}
}

// broken fails every write.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

var _ io.Writer = broken{}
