package packages

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"cascadekv/internal/testing/testman"
	"cascadekv/internal/testing/testneed"
)

const remedy = "scripts/test-package installs it as root"

// built returns the one package whose name matches pattern.
func built(t *testing.T, pattern string) string {
	t.Helper()
	dir := os.Getenv("CASCADE_PACKAGES")
	if dir == "" {
		t.Skip("there are no packages: scripts/test-package makes them and runs this")
	}
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s in %s: %v, %v", pattern, dir, found, err)
	}
	return found[0]
}

// run runs a program that has to succeed, and returns what it printed.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// debian unpacks a Debian and returns its folder.
func debian(t *testing.T) string {
	t.Helper()
	testneed.That(t, os.Getuid() == 0, "root", "chroot wants it")
	archive := os.Getenv("CASCADE_PACKAGE_DEBIAN")
	_, err := os.Stat(archive)
	testneed.That(t, err == nil, "a Debian", "scripts/test-package makes one as root, with debootstrap")
	root := t.TempDir()
	run(t, "tar", "-C", root, "-xf", archive)
	if err := os.WriteFile(filepath.Join(root, "dev/null"), nil, 0o666); err != nil { // for scripts of packages
		t.Fatal(err)
	}
	return root
}

// files lists what is in a root, but for what dpkg, rpm and a rank keep for themselves.
func files(t *testing.T, root string) []string {
	t.Helper()
	own := []string{"var/lib/dpkg", "var/lib/rpm", "root/.rpmdb", "var/log", "var/cache/debconf", "tmp", "dev", "proc"}
	var list []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if slices.Contains(own, name) {
			return fs.SkipDir
		}
		list = append(list, name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// added returns what after has and before has not.
func added(before, after []string) (names []string) {
	for _, name := range after {
		if _, found := slices.BinarySearch(before, name); !found {
			names = append(names, name)
		}
	}
	return names
}

// starts has the rank that an installed cascaded is take a block and give it back,
// and ends it. Programs run by command, with a prefix such as chroot's.
func starts(t *testing.T, prefix []string, bin string) {
	t.Helper()
	command := func(name string, args ...string) *exec.Cmd {
		line := append(slices.Concat(prefix, []string{filepath.Join(bin, name)}), args...)
		return exec.Command(line[0], line[1:]...)
	}
	dir := t.TempDir()
	if len(prefix) > 0 {
		dir = "/tmp/rank" // of a root of its own
	}
	socket := filepath.Join(dir, "rank.sock")
	arena := fmt.Sprintf("/dev/shm/cascade-package-%d.arena", os.Getpid())
	t.Cleanup(func() { os.Remove(arena) })
	var log bytes.Buffer
	rank := command("cascaded", "--socket", socket, "--shm-bytes", "64MiB", "--shm-path", arena, "--lustre-dir", filepath.Join(dir, "campaign"))
	rank.Stdout, rank.Stderr = &log, &log
	if err := rank.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- rank.Wait() }()
	deadline := time.Now().Add(time.Minute)
	for {
		out, err := command("cascade", "status", "--socket", socket).CombinedOutput()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			_ = rank.Process.Kill()
			<-ended
			t.Fatalf("no rank answers: %v\n%s%s", err, out, log.Bytes())
		}
		time.Sleep(50 * time.Millisecond)
	}
	put := command("cascade", "put", "--key", "k", "--socket", socket)
	put.Stdin = strings.NewReader("a block")
	if out, err := put.CombinedOutput(); err != nil {
		t.Errorf("put: %v\n%s", err, out)
	}
	if got, err := command("cascade", "get", "k", "--socket", socket).Output(); err != nil || string(got) != "a block" {
		t.Errorf("get: %q, %v", got, err)
	}
	if err := rank.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the rank ended with %v\n%s", err, log.Bytes())
		}
		if _, err := os.Stat(arena); err == nil {
			t.Errorf("the arena is still there\n%s", log.Bytes())
		}
	case <-time.After(2 * time.Minute):
		_ = rank.Process.Kill()
		t.Fatalf("the rank does not end\n%s", <-ended)
	}
}

// probes has an installed cascade-gpu look for the driver: it is not static, so it finds the C library, and
// on a machine without a GPU that is all it finds.
func probes(t *testing.T, prefix []string, bin string) {
	t.Helper()
	line := append(slices.Clone(prefix), filepath.Join(bin, "cascade"), "gpu", "probe", "--json")
	if out := run(t, line[0], line[1:]...); !strings.Contains(out, `"driver": {`) {
		t.Errorf("cascade gpu probe: %s", out)
	}
}

// inside is the prefix of commands in a root, each with a /proc and a /dev/shm that go with it.
func inside(root string) []string {
	const script = `mkdir -p "$0/dev/shm" "$0/proc" && mount -t proc proc "$0/proc" && mount -t tmpfs tmpfs "$0/dev/shm" && exec chroot "$0" "$@"`
	return []string{"unshare", "--mount", "sh", "-c", script, root}
}

// want are some of what is in every package.
var want = []string{"etc/cascade/cascade.toml", "usr/bin/cascade", "usr/bin/cascaded", "usr/bin/cascade-bench", "usr/bin/cascade-gpu", "usr/share/man/man1/cascade.1.gz", "usr/share/man/man1/cascade-gpu.1.gz",
	"usr/share/man/man5/cascade.toml.5.gz", "usr/share/man/man8/cascaded.8.gz", "usr/share/bash-completion/completions/cascade",
	"usr/share/fish/vendor_completions.d/cascade.fish", "usr/lib/systemd/system/cascaded.service", "usr/lib/sysusers.d/cascade-kv.conf",
	"usr/share/cascade-kv/python/cascade_kv/client.py", "usr/share/doc/cascade-kv/configs/slurm/campaign.sbatch",
	"usr/share/doc/cascade-kv/licences/go/LICENSE", "usr/share/doc/cascade-kv/docs/install.md"}

// installs runs a package through its life in a root: remove leaves what was there before.
func installs(t *testing.T, root string, install, remove func(), besides string) {
	t.Helper()
	before := files(t, root)
	slices.Sort(before)
	install()
	present := added(before, files(t, root))
	for _, name := range append(slices.Clone(want), besides) {
		if !slices.Contains(present, name) {
			t.Errorf("the package does not install %s", name)
		}
	}
	starts(t, inside(root), "/usr/bin")
	out := run(t, "chroot", root, "cascade", "config", "check")
	if !strings.Contains(out, "ok: /etc/cascade/cascade.toml") {
		t.Errorf("config check: %s", out)
	}
	// As the unit makes it.
	if err := os.MkdirAll(filepath.Join(root, "var/cache/cascade/cascade-997"), 0o755); err != nil {
		t.Fatal(err)
	}
	probes(t, []string{"chroot", root}, "/usr/bin")
	remove()
	if left := added(before, files(t, root)); len(left) > 0 {
		t.Errorf("left after its removal: %q", left)
	}
}

func TestDEB(t *testing.T) {
	deb := built(t, "*_amd64.deb")
	testneed.Program(t, "dpkg", remedy)
	root := debian(t)
	run(t, "cp", deb, filepath.Join(root, "tmp/cascade.deb"))
	installs(t, root,
		func() { run(t, "chroot", root, "dpkg", "-i", "/tmp/cascade.deb") },
		func() { run(t, "chroot", root, "dpkg", "--purge", "cascade-kv") },
		"usr/share/zsh/vendor-completions/_cascade")
}

// TestDEBKeepsConfiguration: what a site wrote into the configuration stays there in an upgrade.
func TestDEBKeepsConfiguration(t *testing.T) {
	deb := built(t, "*_amd64.deb")
	root := debian(t)
	run(t, "cp", deb, filepath.Join(root, "tmp/cascade.deb"))
	run(t, "chroot", root, "dpkg", "-i", "/tmp/cascade.deb")
	const text = "job = \"mine\"\n"
	path := filepath.Join(root, "etc/cascade/cascade.toml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, "chroot", root, "dpkg", "-i", "--force-confdef", "/tmp/cascade.deb")
	if got, err := os.ReadFile(path); err != nil || string(got) != text {
		t.Errorf("after an upgrade: %q, %v", got, err)
	}
}

func TestRPM(t *testing.T) {
	rpm := built(t, "*.x86_64.rpm")
	program := testneed.Program(t, "rpm", remedy)
	root := debian(t)
	// Of the package "filesystem" there, which this Debian has not.
	for _, dir := range []string{"usr/lib/sysusers.d", "usr/share/fish/vendor_completions.d", "usr/share/zsh/site-functions"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	installs(t, root,
		func() { run(t, program, "--root", root, "--nodeps", "-i", rpm) },
		func() { run(t, program, "--root", root, "--nodeps", "-e", "cascade-kv") },
		"usr/share/zsh/site-functions/_cascade")
}

// unpacked returns the folder of an unpacked tarball.
func unpacked(t *testing.T) string {
	t.Helper()
	archive := built(t, "*-linux-x86_64.tar.gz")
	dir := t.TempDir()
	run(t, "tar", "-C", dir, "-xzf", archive)
	home := filepath.Join(dir, strings.TrimSuffix(filepath.Base(archive), "-linux-x86_64.tar.gz"))
	if _, err := os.Stat(home); err != nil {
		t.Fatal(err)
	}
	return home
}

func TestTarball(t *testing.T) {
	home := unpacked(t)
	starts(t, nil, filepath.Join(home, "bin"))
	for _, name := range []string{"cascade", "cascaded", "cascade-bench"} {
		program, err := elf.Open(filepath.Join(home, "bin", name))
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(program.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC }) {
			t.Errorf("%s is not static", name)
		}
		program.Close()
	}
	probes(t, nil, filepath.Join(home, "bin"))
	for _, page := range []string{"man1/cascade.1", "man1/cascade-bench.1", "man1/cascade-gpu.1", "man5/cascade.toml.5", "man8/cascaded.8"} {
		text, err := exec.Command("gzip", "-dc", filepath.Join(home, "share/man", page+".gz")).Output()
		if err != nil {
			t.Fatal(err)
		}
		version := strings.TrimPrefix(filepath.Base(home), "cascade-kv-")
		if !strings.Contains(testman.Render(t, filepath.Base(page), text), version) {
			t.Errorf("%s is not of version %s", page, version)
		}
	}
	for _, name := range []string{"cascade", "cascaded"} {
		run(t, "bash", "-n", filepath.Join(home, "share/bash-completion/completions", name))
	}
	if out := run(t, filepath.Join(home, "bin/cascaded"), "__complete", "--shm-b"); !strings.Contains(out, "--shm-bytes") {
		t.Errorf("cascaded completes --shm-b to %q", out)
	}
}
