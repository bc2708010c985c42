package lustretest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cmd/cascade-bench/lustrebench"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/guest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment"
	"cascadekv/lustre/segment/lease"
	"cascadekv/tiers"
)

// Tests whose names begin with TestReal run in a guest, where they are the
// client and can command the servers. Tests of the host start them there.

// inGuest runs tests of this package in a guest.
func inGuest(t *testing.T, m *guest.Machine, run string) {
	t.Helper()
	p := packageRun{binary: "self.test", folder: "internal/testing/lustretest", run: run}
	p.on(t, m, fmt.Sprintf("/mnt/lustre/real-%08x", crc32.ChecksumIEEE([]byte(run))))
}

// TestReal runs in a guest what needs nothing but a file system and its servers.
func TestReal(t *testing.T) {
	t.Parallel()
	m := machine(t)
	t.Run("table I", func(t *testing.T) { tableOne(t, m) })
	inGuest(t, m, "^(TestRealEviction|TestRealClients|TestRealCalls|TestRealCallsWork|TestRealGroupLocks|TestRealMoves|TestRealInactive)$")
}

// tableCaveat says what figures of a guest are worth.
const tableCaveat = "a guest is User-Mode Linux with one CPU, the servers beside the client and disks that are files in the host's page cache: " +
	"the ratios tell a direction, the rates nothing, and both move by half from run to run"

// tableOne prints CASCADE's Table I as this Lustre has it. It asserts nothing
// about speed.
func tableOne(t *testing.T, m *guest.Machine) {
	size := "2m"
	if os.Getenv(runVariable) == "long" {
		size = "16m"
	}
	out := must(t, m.Run, "mkdir /mnt/lustre/bench && "+guest.Host(filepath.Join(bin, "cascade"))+
		" bench lustre --dir /mnt/lustre/bench --size "+size+" --rounds 3 --limit-size 8m --json 2>/dev/null")
	var result lustrebench.Result
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if len(result.Blocks) != 3 || result.Blocks[0].Bytes != 42<<10 || !strings.EqualFold(result.FileSystem, "Lustre") || !result.Direct {
		t.Fatalf("%+v", result)
	}
	for _, b := range result.Blocks {
		t.Logf("CASCADE Table I on Lustre in a guest, %d blocks of %d KiB: write %.1f MB/s aggregated, %.1f MB/s one file per block, %.2f times; read %.1f MB/s, %.1f MB/s, %.2f times",
			b.Count, b.Bytes>>10, b.Aggregated.WriteMBps, b.PerFile.WriteMBps, b.SpeedupWrite, b.Aggregated.ReadMBps, b.PerFile.ReadMBps, b.SpeedupRead)
		if min(b.Aggregated.WriteMBps, b.PerFile.WriteMBps, b.Aggregated.ReadMBps, b.PerFile.ReadMBps) <= 0 {
			t.Error("a side has moved nothing")
		}
	}
	t.Logf("caveat: %s", tableCaveat)
	summary(t, "table_1", map[string]any{"blocks": result.Blocks, "uring": result.Uring, "caveat": tableCaveat})
}

// onLustre makes a folder for a test that runs in a guest.
func onLustre(t *testing.T) string {
	t.Helper()
	root := os.Getenv("CASCADE_LUSTRE")
	if root == "" {
		t.Skip("runs in a guest: make test-lustre")
	}
	dir, err := os.MkdirTemp(root, "real-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// shell runs a command that has to succeed.
func shell(t *testing.T, format string, args ...any) string {
	t.Helper()
	out, err := command(format, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func command(format string, args ...any) (string, error) {
	text := fmt.Sprintf(format, args...)
	if len(args) == 0 {
		text = format
	}
	out, err := exec.Command("sh", "-c", text).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", text, err, out)
	}
	return string(out), err
}

// forgetCaches makes the client ask the servers for everything.
func forgetCaches(t *testing.T) {
	t.Helper()
	shell(t, "echo 3 >/proc/sys/vm/drop_caches; lctl set_param -n ldlm.namespaces.*.lru_size=clear")
}

// realItem is a block of its own for each number.
func realItem(number uint64, size int) tiers.Item {
	data := make([]byte, size)
	batch{1 << 40, number}.random().Read(data) // it never fails
	return tiers.Item{Info: block.Info{ID: block.Sum(block.Bits128, data), Size: int64(size), CRC: block.CRC(data)}, Data: data}
}

func openSegments(t *testing.T, o segment.Options) *segment.Store {
	t.Helper()
	o.CloseWait = 5 * time.Second
	s, err := segment.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if err := s.Recover(func(tiers.Entry) error { return nil }); err != nil {
		t.Fatal(err)
	}
	return s
}

// readBlock returns a block's bytes, or why there are none.
func readBlock(t *testing.T, s *segment.Store, it tiers.Item) ([]byte, error) {
	ref, err := s.Pin(it.Info.ID)
	if err != nil {
		return nil, err
	}
	defer ref.Release()
	dst := make([]byte, it.Info.Size)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return dst, ref.ReadInto(ctx, dst)
}

func wantBlocks(t *testing.T, what string, s *segment.Store, items ...tiers.Item) {
	t.Helper()
	for i, it := range items {
		if got, err := readBlock(t, s, it); err != nil || !bytes.Equal(got, it.Data) {
			t.Errorf("%s: block %d of %d: right bytes: %v, %v", what, i, len(items), bytes.Equal(got, it.Data), err)
		}
	}
}

func putBlocks(t *testing.T, s *segment.Store, items ...tiers.Item) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Put(ctx, items...); err != nil {
		t.Fatal(err)
	}
}

// between does something before a file is synced for the second time.
type between struct {
	vfs.OS
	do func(path string)
}

type betweenFile struct {
	vfs.File
	fs    *between
	path  string
	syncs int
}

// Create implements vfs.FS.
func (b *between) Create(path string, perm uint32) (vfs.File, error) {
	f, err := b.OS.Create(path, perm)
	if err != nil {
		return nil, err
	}
	return &betweenFile{File: f, fs: b, path: strings.TrimSuffix(path, ".tmp")}, nil
}

// Sync implements vfs.File.
func (f *betweenFile) Sync() error {
	if f.syncs++; f.syncs == 2 {
		f.fs.do(f.path)
	}
	return f.File.Sync()
}

// SetDirect implements vfs.Director.
func (f *betweenFile) SetDirect() (vfs.Alignment, error) { return vfs.SetDirect(f.File) }

// evict has the OSTs evict this client, and returns when it knows. It may run in
// any goroutine. The history that tells has 16 states and whole seconds: of several
// evictions in one second the last would not show.
func evict() error {
	_, err := command(`usleep 1000000; client=$(lfs getname /mnt/lustre | cut -d' ' -f1)
		id=$(lctl get_param -n llite.$client.uuid); osc="osc.lustre-OST*-osc-${client#lustre-}"
		before=$(lctl get_param -n $osc.state | grep EVICTED)
		for s in obdfilter.lustre-OST0000 obdfilter.lustre-OST0001; do lctl set_param -n $s.evict_client=$id; done
		for i in $(seq 500); do
			lfs check osts >/dev/null 2>&1 # a request that fails: a write of dirty bytes would wait
			now=$(lctl get_param -n $osc.state)
			[ "$(echo "$now" | grep EVICTED)" != "$before" ] && [ $(echo "$now" | grep -c 'current_state: [FI][UD]L') -ge 2 ] && exit 0
			usleep 20000
		done; echo "$now"; exit 1`)
	return err
}

// TestRealEviction: an evicted client has lost what was written and not synced,
// and says so once for the file. Who else reads and closes the file does not take
// the writer's error. Who else syncs it does, and so does sync(1), which tells
// nobody: then a put through the page cache is acknowledged and gone. A store is
// safe from that past the page cache, and in no case serves wrong bytes.
func TestRealEviction(t *testing.T) {
	for _, c := range []struct {
		name   string
		direct segment.Switch
		others string // commands of another process, with the file's path
		taken  []bool // whether they take the error: what can be
	}{
		{"nobody else", segment.Off, ": %s", []bool{false}},
		{"a reader of another process closes", segment.Off, "exec 3<%s; head -c 10 <&3 >/dev/null; exec 3<&-; true", []bool{false}},
		{"sync of the file", segment.Off, "sync %s; true", []bool{true}},
		{"sync of everything", segment.Off, "sync; : %s", []bool{false, true}},
		{"past the page cache", segment.On, "sync %s; sync", []bool{false, true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := &between{}
			fs.do = func(path string) {
				reader, err := os.Open(path)
				err = errors.Join(err, evict())
				_, failed := command(c.others, path)
				if closed := reader.Close(); !errors.Is(closed, syscall.EIO) {
					err = errors.Join(err, closed)
				}
				if err = errors.Join(err, failed); err != nil {
					t.Error(err) // not Fatal: this is the store's goroutine
				}
			}
			dir := onLustre(t)
			s := openSegments(t, segment.Options{Dir: dir, FS: fs, Direct: c.direct, Incarnation: 1})
			first, second := realItem(1, 1<<20), realItem(2, 1<<20)
			putBlocks(t, s, first)
			err := s.Put(t.Context(), second)
			acknowledged := err == nil
			if err != nil && !errors.Is(err, tiers.ErrUnavailable) {
				t.Errorf("Put: %v", err)
			}
			if !slices.Contains(c.taken, acknowledged) {
				t.Errorf("acknowledged: %v; docs/lustre.md tells it otherwise", acknowledged)
			}
			forgetCaches(t)
			got, readErr := readBlock(t, s, second)
			t.Logf("acknowledged: %v; read back: %v", acknowledged, readErr)
			switch {
			case readErr == nil && !bytes.Equal(got, second.Data):
				t.Error("wrong bytes")
			case readErr != nil && acknowledged && (c.direct == segment.On || !slices.Contains(c.taken, true)):
				t.Errorf("an acknowledged block is lost: %v", readErr)
			}
			if !acknowledged || readErr != nil {
				putBlocks(t, s, second)
			}
			forgetCaches(t)
			wantBlocks(t, "put again", s, first, second)
		})
	}
}

// TestRealClients: two clients of one file system, each a rank. They read each
// other's blocks by place while these are written, a file goes on being readable
// for who has it open after its owner has unlinked it, and each starts warm from
// what the other left.
func TestRealClients(t *testing.T) {
	dir := onLustre(t)
	second := "/mnt/second"
	shell(t, "mkdir -p %s && mount.lustre -o user_xattr,flock $(grep ' /mnt/lustre ' /proc/mounts | cut -d' ' -f1) %[1]s", second)
	t.Cleanup(func() { shell(t, "umount %s", second) })
	dirs := []string{dir, second + strings.TrimPrefix(dir, "/mnt/lustre")}
	var stores []*segment.Store
	nodes := []lease.Process{lease.Self(), lease.Self()}
	nodes[1].Boot[0]++ // another one
	for rank, dir := range dirs {
		stores = append(stores, openSegments(t, segment.Options{Dir: dir, Rank: uint32(rank), Incarnation: 1, KeepOpen: time.Minute, Process: nodes[rank]}))
	}
	byPlace := func(from, by int, it tiers.Item) error {
		p, err := stores[from].Segment(it.Info.ID)
		if err != nil {
			return err
		}
		dst := make([]byte, it.Info.Size)
		if err = stores[by].ReadSegment(t.Context(), p, it.Info, dst); err == nil && !bytes.Equal(dst, it.Data) {
			t.Errorf("wrong bytes of rank %d at rank %d", from, by)
		}
		return err
	}
	var items [2][]tiers.Item
	for i := range 12 {
		for rank, s := range stores {
			it := realItem(uint64(100*rank+i+10), 70000)
			items[rank] = append(items[rank], it)
			putBlocks(t, s, it)
			if err := byPlace(rank, 1-rank, it); err != nil {
				t.Errorf("block %d of rank %d: %v", i, rank, err)
			}
		}
	}
	at, err := stores[0].Segment(items[0][0].Info.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := stores[0].Close(); err != nil {
		t.Fatal(err)
	}
	stores[0] = openSegments(t, segment.Options{Dir: dirs[0], Rank: 0, Incarnation: 2})
	wantBlocks(t, "warm start of rank 0", stores[0], append(items[0], items[1]...)...)
	for _, it := range items[0] {
		if err := stores[0].Evict(it.Info.ID); err != nil {
			t.Error(err)
		}
	}
	path := filepath.Join(dirs[0], at.Path)
	for range 6000 { // on a busy machine
		if !exists(path) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if exists(path) {
		t.Error("the owner's segment was not unlinked")
	}
	dst := make([]byte, items[0][0].Info.Size)
	if err := stores[1].ReadSegment(t.Context(), at, items[0][0].Info, dst); err != nil || !bytes.Equal(dst, items[0][0].Data) {
		t.Errorf("read of a file that its owner has unlinked, by who has it open: %v", err)
	}
	late := openSegments(t, segment.Options{Dir: dirs[1], Rank: 2, Incarnation: 3})
	wantBlocks(t, "warm start of a new rank", late, items[1]...)
	if _, err := late.Pin(items[0][0].Info.ID); !errors.Is(err, tiers.ErrNotFound) {
		t.Errorf("a block whose segment is unlinked: %v", err)
	}
	if err := late.ReadSegment(t.Context(), at, items[0][0].Info, dst); !errors.Is(err, tiers.ErrNotFound) {
		t.Errorf("read of a file that is unlinked, by who has it not open: %v", err)
	}
}

// TestRealCalls: what lustre/segment does without, and why. An answer that is
// another one some day changes nothing but lustre-real.md.
func TestRealCalls(t *testing.T) {
	dir := onLustre(t)
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	if err := os.WriteFile(a, make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(a, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	into, err := os.Create(b)
	if err != nil {
		t.Fatal(err)
	}
	defer into.Close()
	for _, c := range []struct {
		what      string
		got, want error
	}{
		{"rename that replaces nothing", unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, filepath.Join(dir, "c"), unix.RENAME_NOREPLACE), unix.EINVAL},
		{"rename that replaces nothing, onto a file", unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_NOREPLACE), unix.EEXIST},
		{"reflink", unix.IoctlFileClone(int(into.Fd()), int(f.Fd())), unix.EOPNOTSUPP},
		{"collapsing a range", unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_COLLAPSE_RANGE, 0, 4096), unix.EOPNOTSUPP},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: %v, was %v", c.what, c.got, c.want)
		}
	}
	if fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR, 0o600); !errors.Is(err, unix.EOPNOTSUPP) {
		unix.Close(fd)
		t.Errorf("a file without a name: %v, was EOPNOTSUPP", err)
	}
	access := openSegments(t, segment.Options{Dir: dir}).Access()
	if !access.Direct {
		t.Errorf("a store does not go past the page cache here: %v; it must, see docs/lustre.md", access.NoDirect)
	}
	if access.Alignment.Offset > 4096 {
		t.Errorf("alignment %+v", access.Alignment)
	}
}

// TestRealMoves: an administrator changes the stripes of a segment that is in
// use, or mirrors it. Reads go on, with right bytes.
func TestRealMoves(t *testing.T) {
	dir := onLustre(t)
	s := openSegments(t, segment.Options{Dir: dir, Incarnation: 1})
	var items []tiers.Item
	for i := range 8 {
		items = append(items, realItem(uint64(i+300), 300000))
	}
	putBlocks(t, s, items...)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openSegments(t, segment.Options{Dir: dir, Incarnation: 2})
	wantBlocks(t, "before", s, items...)
	place, err := s.Segment(items[0].Info.ID)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, place.Path)
	for _, move := range []string{"lfs migrate -c 2 -S 1m %s", "lfs mirror extend -N -c 1 %s", "lfs migrate -c 1 %s"} {
		shell(t, move, path)
		wantBlocks(t, "page cache after "+move, s, items...)
		forgetCaches(t)
		wantBlocks(t, move, s, items...)
	}
}

// TestRealInactive: statfs leaves out the space of an OST that is inactive at
// the metadata server. What lies on one that is inactive at the client cannot be
// read or asked for its length, and a segment there is unlinked or left for the
// next run; then all is as before.
func TestRealInactive(t *testing.T) {
	dir := onLustre(t)
	fs := vfs.OS{}
	all, err := fs.Statfs(dir)
	if err != nil {
		t.Fatal(err)
	}
	if all.Type != vfs.LustreType {
		t.Errorf("file system of type %#x", all.Type)
	}
	shell(t, "lfs setstripe -c 1 -i 1 %s", dir)
	s := openSegments(t, segment.Options{Dir: dir, SegmentBlocks: 1, Incarnation: 1})
	stays, goes := realItem(400, 200000), realItem(401, 200000)
	putBlocks(t, s, stays)
	putBlocks(t, s, goes)
	place, err := s.Segment(goes.Info.ID)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, place.Path)
	inactive(t, "osp.lustre-OST0001-osc-MDT0000", func() {
		var left vfs.Space
		for n := 0; n < 1000 && (n == 0 || err == nil && left.Total == all.Total); n++ { // the client asks once a second
			time.Sleep(10 * time.Millisecond)
			left, err = fs.Statfs(dir)
		}
		if err != nil || left.Total == 0 || left.Total > all.Total*2/3 {
			t.Errorf("statfs of one OST of two: %+v of %+v, %v", left, all, err)
		}
	})
	inactive(t, "osc.lustre-OST0001-osc-[f0-9]*", func() {
		forgetCaches(t)
		if _, err := readBlock(t, s, stays); !errors.Is(err, tiers.ErrUnavailable) {
			t.Errorf("read: %v", err)
		}
		if _, err := os.Stat(path); !errors.Is(err, syscall.ESHUTDOWN) {
			t.Errorf("stat: %v, was ESHUTDOWN", err)
		}
		if err := s.Evict(goes.Info.ID); err != nil {
			t.Error(err)
		}
	})
	for range 1000 {
		got, err := readBlock(t, s, stays)
		if err == nil && bytes.Equal(got, stays.Data) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	wantBlocks(t, "with the OST back", s, stays)
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	s = openSegments(t, segment.Options{Dir: dir, Incarnation: 2})
	if err := s.Evict(goes.Info.ID); err != nil && !errors.Is(err, tiers.ErrNotFound) { // it may be gone already
		t.Error(err)
	}
	for n := 0; n < 1000 && exists(path); n++ {
		time.Sleep(10 * time.Millisecond)
	}
	if exists(path) {
		t.Error("the segment is never unlinked")
	}
	wantBlocks(t, "at the end", s, stays)
}

// inactive runs do while a connection to an OST is inactive.
func inactive(t *testing.T, connection string, do func()) {
	t.Helper()
	shell(t, "lctl set_param -n %s.active=0", connection)
	defer shell(t, "lctl set_param -n %s.active=1", connection)
	do()
}
