package layout

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// onLustre makes a directory for a test on a real Lustre.
func onLustre(t *testing.T) string {
	t.Helper()
	root := os.Getenv("CASCADE_LUSTRE")
	if root == "" {
		t.Skip("CASCADE_LUSTRE names no directory on Lustre: make test-lustre brings one up")
	}
	dir, err := os.MkdirTemp(root, "layout-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if i, err := Detect(dir); err != nil || !i.Lustre || i.Version == "" {
		t.Fatalf("%s should be on Lustre: %+v, %v", dir, i, err)
	}
	return dir
}

// tool runs a program and returns what it prints.
func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// secondOST is a parameter of the metadata server of make test-lustre: whether
// it places objects on the second OST.
const secondOST = "osp.lustre-OST0001-osc-MDT0000.active"

// needServers skips what changes a file system for everybody, unless its
// servers are on this machine, as in the guest.
func needServers(t *testing.T) {
	t.Helper()
	if err := exec.Command("lctl", "get_param", secondOST).Run(); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and the servers on this machine: make test-lustre has both")
	}
}

// raw reads lustre.lov.
func raw(t *testing.T, path string) []byte {
	t.Helper()
	b := make([]byte, maxXattr)
	n, err := unix.Lgetxattr(path, xattrLayout, b)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return b[:n]
}

// masked is b without what differs from file to file: the ids of the file and
// of its objects, and the OSTs that the server chose.
func masked(b []byte) []byte {
	b = bytes.Clone(b)
	parts := [][2]int{{0, len(b)}}
	if le.Uint32(b) == magicComp {
		parts = nil
		for i := range int(le.Uint16(b[14:])) {
			entry := b[sizeComp+sizeEntry*i:]
			off := int(le.Uint32(entry[24:]))
			parts = append(parts, [2]int{off, off + int(le.Uint32(entry[28:]))})
		}
	}
	for _, p := range parts {
		part := b[p[0]:p[1]]
		clear(part[8:24])
		head := sizeV1
		if le.Uint32(part) == magicV3 {
			head = sizeV3
		}
		clear(part[head:])
	}
	return b
}

// lines are layouts that a file system with two OSTs grants in full, or clamps.
var lines = []string{
	"-c 1", "-c 2", "-c 0", "-c -1", "-c 40", "-c 2000", "-S 64k", "-S 8m -c 2", "-S 1g", "-i -1 -c 2",
	"-C 5", "-C -2", "-C 3 -S 1m", "-p ignore -c 2",
	"-E -1 -c 1", "-E 64M -c 1 -E -1 -c 2 -S 4m", "-E 64M -c1 -E 1G -c4 -E -1 -c16", "-E 64M -c 1 -E eof -c -1",
	"-c 2 -S 1m -E 64M -E eof", "-E 1M -L mdt -E eof -c 2", "-E 64k -L mdt -E 64M -c 1 -S 1m -E eof -c 2", "-E 64M -C 4 -E eof -c 1",
}

func TestLustreRequestsGiveWhatLfsGives(t *testing.T) {
	dir := onLustre(t)
	for i, line := range lines {
		t.Run(line, func(t *testing.T) { sameAsLfs(t, dir, fmt.Sprint(i), line) })
	}
}

// sameAsLfs makes a file and a directory by this package and by lfs, and
// compares their bytes, and what lfs and this package say of them.
func sameAsLfs(t *testing.T, dir, name, line string) {
	asked, err := Parse(line)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := filepath.Join(dir, "ours"+name), filepath.Join(dir, "lfs"+name)
	f, r, err := createFile(ours, 0o600, asked)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tool(t, "lfs", append(append([]string{"setstripe"}, strings.Fields(line)...), theirs)...)
	if a, b := masked(raw(t, ours)), masked(raw(t, theirs)); !bytes.Equal(a, b) {
		t.Errorf("files differ:\nours %x\nlfs  %x", a, b)
	}
	for _, path := range []string{ours, theirs} {
		g, err := Read(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := getstripe(path, g), tool(t, "lfs", "getstripe", path); got != want {
			t.Errorf("read as\n%s\nlfs getstripe says\n%s", got, want)
		}
	}
	if clamped := strings.Contains(line, "40") || strings.Contains(line, "2000"); clamped == r.OK() || !r.Striped {
		t.Errorf("report: %v", r)
	}
	if _, err := f.WriteAt([]byte("x"), 100<<20); err != nil {
		t.Errorf("write behind 64 MiB: %v", err)
	}
	if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0); err != nil || flags&delayCreate != 0 {
		t.Errorf("flags %#x: %v", flags, err)
	}
	sameDefault(t, dir, name, line, asked)
}

func sameDefault(t *testing.T, dir, name, line string, asked Layout) {
	ours, theirs := filepath.Join(dir, "ours-dir"+name), filepath.Join(dir, "lfs-dir"+name)
	for _, d := range []string{ours, theirs} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	r, err := setDefault(ours, asked)
	if err != nil || !r.OK() || !r.Striped {
		t.Fatalf("default: %v, %v", r, err)
	}
	tool(t, "lfs", append(append([]string{"setstripe"}, strings.Fields(line)...), theirs)...)
	if line == "-c 0" {
		return // lfs takes this for a wish to have no default; there is nothing to compare
	}
	if a, b := masked(raw(t, ours)), masked(raw(t, theirs)); !bytes.Equal(a, b) {
		t.Errorf("defaults differ:\nours %x\nlfs  %x", a, b)
	}
	for _, d := range []string{ours, theirs} {
		if err := os.WriteFile(filepath.Join(d, "f"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if a, b := masked(raw(t, filepath.Join(ours, "f"))), masked(raw(t, filepath.Join(theirs, "f"))); !bytes.Equal(a, b) {
		t.Errorf("files made there differ:\nours %x\nlfs  %x", a, b)
	}
}

// getstripe writes g as "lfs getstripe" of Lustre 2.17 does.
func getstripe(path string, g Granted) string {
	var s strings.Builder
	fmt.Fprintln(&s, path)
	if !g.Composite {
		p := g.Parts[0]
		stripesText(&s, "", p)
		s.WriteString("\tobdidx\t\t objid\t\t objid\t\t group\n")
		for _, o := range p.Objects {
			fmt.Fprintf(&s, "\t%6d\t%14d\t%#13x\t%#14x\n", o.OST, o.ID, o.ID, o.Seq)
		}
		s.WriteString("\n")
		return s.String()
	}
	fmt.Fprintf(&s, "  lcm_layout_gen:    %d\n  lcm_mirror_count:  %d\n  lcm_entry_count:   %d\n", g.Generation, g.Mirrors, len(g.Parts))
	for i, p := range g.Parts {
		if i > 0 {
			s.WriteString("\n")
		}
		end := fmt.Sprint(p.End)
		if p.End == EOF {
			end = "EOF"
		}
		fmt.Fprintf(&s, "    lcme_id:             %d\n    lcme_mirror_id:      %d\n    lcme_flags:          %s\n", p.ID&0xffff, p.ID>>16, p.flagNames())
		fmt.Fprintf(&s, "    lcme_extent.e_start: %d\n    lcme_extent.e_end:   %s\n", p.Start, end)
		stripesText(&s, "      ", p)
		if p.Initialized() && len(p.Objects) > 0 {
			s.WriteString("      lmm_objects:\n")
			for i, o := range p.Objects {
				fmt.Fprintf(&s, "      - %3d: { l_ost_idx: %3d, l_fid: [%#x:%#x:0x0] }\n", i, o.OST, o.Seq, o.ID)
			}
		}
	}
	s.WriteString("\n")
	return s.String()
}

func stripesText(s *strings.Builder, indent string, p Part) {
	pattern, offset, where := "raid0", "-1", "stripe_offset:"
	switch {
	case p.OnMDT:
		pattern, offset, where = "mdt", "0", "mdt_index:    "
	case p.Overstripe:
		pattern = "raid0,overstriped"
	}
	if len(p.Objects) > 0 && p.Initialized() {
		offset = fmt.Sprint(p.Objects[0].OST)
	}
	fmt.Fprintf(s, "%slmm_stripe_count:  %d\n%slmm_stripe_size:   %d\n%slmm_pattern:       %s\n%slmm_layout_gen:    0\n%slmm_%s %s\n",
		indent, p.Count, indent, p.Size, indent, pattern, indent, indent, where, offset)
	if p.Pool != "" {
		fmt.Fprintf(s, "%slmm_pool:          %s\n", indent, p.Pool)
	}
}

func TestLustrePools(t *testing.T) {
	dir := onLustre(t)
	needServers(t)
	newPool(t, dir, "layouttest", "OST0001")
	for i, line := range []string{
		"-p layouttest", "-p layouttest -c 1 -S 8m", "-p lustre.layouttest -c 1", "-E 64M -c 1 -p layouttest -E eof -c 1",
		"-E 64M -c 1 -p layouttest -E eof -c 2 -p ignore", "-E 1M -L mdt -E eof -c 1 -p layouttest",
	} {
		t.Run(line, func(t *testing.T) { sameAsLfs(t, dir, fmt.Sprint(i), line) })
	}
	t.Run("more stripes than OSTs in it", func(t *testing.T) {
		f, r, err := createFile(filepath.Join(dir, "many"), 0o600, Plain(2, 0, "layouttest"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if len(r.Differences) != 1 || r.Differences[0].Kind != Fewer || !slices.Equal(r.Granted.OSTs(), []int{1}) {
			t.Errorf("%v", r)
		}
	})
	t.Run("none of that name", func(t *testing.T) {
		path := filepath.Join(dir, "none")
		f, r, err := createFile(path, 0o600, Plain(1, 0, "nosuchpool"))
		if err != nil {
			t.Fatalf("Lustre checks names by now: %v", err)
		}
		defer f.Close()
		if len(r.Differences) != 1 || r.Differences[0].Kind != NoPool {
			t.Errorf("%v", r)
		}
		if r, err = setDefault(dir, Plain(1, 0, "nosuchpool")); err != nil || len(r.Differences) != 1 || r.Differences[0].Kind != NoPool {
			t.Errorf("default: %v, %v", r, err)
		}
	})
}

// newPool makes a pool of one OST for a test.
func newPool(t *testing.T, dir, name, ost string) {
	tool(t, "lctl", "pool_new", "-n", "lustre."+name)
	t.Cleanup(func() {
		tool(t, "lctl", "pool_remove", "-n", "lustre."+name, "lustre-"+ost)
		tool(t, "lctl", "pool_destroy", "-n", "lustre."+name)
	})
	tool(t, "lctl", "pool_add", "-n", "lustre."+name, "lustre-"+ost)
	// The client and the metadata server learn of it after some seconds, each in
	// its own time. A server that knows of a pool but of no OST in it takes any.
	for range 600 {
		client, _ := poolMembers(dir, name, "/")
		server, _ := exec.Command("lctl", "get_param", "-n", "lod.*.pools."+name).Output()
		if len(client) == 1 && strings.Contains(string(server), ost) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("client or metadata server never learns of the pool %s", name)
}

func TestLustreRefusedFileIsRemoved(t *testing.T) {
	dir := onLustre(t)
	path := filepath.Join(dir, "f")
	// lfs would refuse this size; the bytes go past Validate to see what Lustre leaves.
	fd, err := open(path, openFlags|unix.O_CREAT|unix.O_EXCL|delayCreate, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	b := Component{Count: 1, Size: 100000}.append(nil)
	if err := set(fd, b, false); !errors.Is(err, unix.EINVAL) {
		t.Fatalf("a stripe size of 100000: %v", err)
	}
	unix.Close(fd)
	if _, err := os.Lstat(path); err != nil {
		t.Fatalf("Lustre no longer leaves the file: %v", err)
	}
	if _, err := Read(path); !errors.Is(err, ErrNoLayout) {
		t.Errorf("a file without objects: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := setDefault(dir, Plain(1, 0, "")); err != nil {
		t.Fatal(err)
	}
	tooMany := Layout{}
	for i := range maxParts {
		tooMany.Components = append(tooMany.Components, Component{End: int64(i+1) << 20, Count: 2000})
	}
	tooMany.Components[maxParts-1].End = EOF
	if _, _, err := createFile(path, 0o600, tooMany); !errors.Is(err, ErrRefused) {
		t.Errorf("%d components: %v", maxParts, err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the refused file is still there: %v", err)
	}
}

func TestLustreSecondRequestIsRefused(t *testing.T) {
	dir := onLustre(t)
	path := filepath.Join(dir, "f")
	f, _, err := createFile(path, 0o600, Plain(1, 1<<20, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := Report{Path: path, Asked: Plain(2, 8<<20, "")}
	if err := askFor(int(f.Fd()), &r); !errors.Is(err, ErrRefused) || !errors.Is(err, unix.EEXIST) {
		t.Errorf("%v", err)
	}
	if g, err := Read(path); err != nil || g.Parts[0].Count != 1 || g.Parts[0].Size != 1<<20 {
		t.Errorf("%v, %v", g, err)
	}
}

func TestLustreDirectoryWithoutDefault(t *testing.T) {
	dir := onLustre(t)
	if _, err := Read(dir); !errors.Is(err, ErrNoLayout) {
		t.Errorf("no default: %v", err)
	}
	r, err := setDefault(dir, Layout{})
	if err != nil || !r.Striped || !r.OK() || len(r.Granted.Parts) != 0 {
		t.Errorf("nothing asked for: %v, %v", r, err)
	}
	f, r, err := createFile(filepath.Join(dir, "f"), 0o600, Layout{})
	if err != nil || !r.Striped || !r.OK() || len(r.Granted.OSTs()) != 1 {
		t.Fatalf("a file with the default: %v, %v", r, err)
	}
	f.Close()
}

// deactivate takes the second OST from new files until the test ends.
func deactivate(t *testing.T, dir string) {
	t.Helper()
	tool(t, "lctl", "set_param", secondOST+"=0")
	t.Cleanup(func() {
		tool(t, "lctl", "set_param", secondOST+"=1")
		for range 100 { // it takes objects again when its connection is back
			f, r, err := createFile(filepath.Join(dir, "back"), 0o600, Plain(2, 0, ""))
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
			os.Remove(f.Name())
			if r.OK() {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Fatal("the OST does not come back")
	})
}

func TestLustreInactiveOST(t *testing.T) {
	dir := onLustre(t)
	needServers(t)
	deactivate(t, dir)
	for name, asked := range map[string]Layout{"plain": Plain(2, 8<<20, ""), "composite": {[]Component{{End: 64 << 20, Count: 2}, {End: EOF, Count: 2}}}} {
		f, r, err := createFile(filepath.Join(dir, name), 0o600, asked)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		f.Close()
		if len(r.Differences) != 1 || r.Differences[0].Kind != Fewer || !slices.Equal(r.Granted.OSTs(), []int{0}) {
			t.Errorf("%s: %v", name, r)
		}
	}
}

func TestLustreHints(t *testing.T) {
	dir := onLustre(t)
	f, _, err := createFile(filepath.Join(dir, "f"), 0o600, Plain(2, 1<<20, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(make([]byte, 4<<20), 0); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int64{0, 3 << 20} { // to the end, and on both OSTs
		if err := advise(int(f.Fd()), adviceWillRead, 1<<20, n); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if !(Adviser{}).WillRead(f.Name(), 0, 4<<20) {
		t.Error("nobody listens")
	}
	if err := advise(int(f.Fd()), 99, 0, 0); !errors.Is(err, ErrNoHints) {
		t.Errorf("advice that nobody knows: %v", err)
	}
}

func TestLustreAsAnOrdinaryUser(t *testing.T) {
	dir := onLustre(t)
	if os.Geteuid() != 0 {
		t.Skip("the other tests have run as one")
	}
	const nobody = 65534
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self, "-test.run=^TestLustre(Requests|Refused|Second|Directory|Hints)", "-test.v")
	c.Env = append(os.Environ(), "CASCADE_LUSTRE="+dir)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := c.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestLustreRequests")) {
		t.Errorf("%v\n%s", err, out)
	}
}
