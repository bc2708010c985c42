package giobench

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/gpu/gio"
	"cascadekv/internal/testing/race"
)

func TestMain(m *testing.M) {
	DeviceMain()
	if len(os.Args) == 3 && os.Args[1] == pausedVerb {
		fmt.Fprintln(os.Stderr, paused(os.Args[2]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestRun: all bytes come back on both engines, and the result has what others
// read of it. It judges no figure.
func TestRun(t *testing.T) {
	if race.On {
		t.Skip("the race detector makes system calls")
	}
	for _, engine := range []string{"", gio.EngineUser} {
		rounds := 0
		res, err := Run(t.Context(), Options{Dir: t.TempDir(), Rounds: 2, Depth: 8, Bytes: 4 << 20, Engine: engine, Log: os.Stderr, Progress: func(int, int) { rounds++ }})
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(res)
		if err != nil {
			t.Fatal(err)
		}
		if res.Errors != 0 || rounds != 2+2 || res.Gio.MBps <= 0 || res.Pool.MBps <= 0 || engine != "" && res.Engine != engine {
			t.Errorf("%s", text)
		}
		if (res.RatioFio == nil) != (res.Why != "") || res.RatioFio != nil && (*res.RatioFio <= 0 || len(res.Ratios) != 2) {
			t.Errorf("fio: %s", text)
		}
		for what, rates := range map[string][]float64{"mixed": res.Mixed.Ratios, "reads by size": res.Commands.Read.Ratios, "writes by size": res.Commands.Write.Ratios} {
			if len(rates) != 2 || slices.Min(rates) <= 0 {
				t.Errorf("%s: ratios %v: %s", what, rates, text)
			}
		}
		for what, f := range map[string]kit.Figure{"reads apart": res.Mixed.Reads.Apart, "writes together": res.Mixed.Writes.Together, "small writes": res.Commands.Write.Small.Figure} {
			if f.MBps <= 0 {
				t.Errorf("%s: %+v: %s", what, f, text)
			}
		}
		for _, field := range []string{"ratio_fio", "user_cpu_ratio", "errors"} {
			if !strings.Contains(string(text), `"`+field+`":`) {
				t.Errorf("no %s: %s", field, text)
			}
		}
	}
}

// TestWrongBytes: a block of other bytes is an error.
func TestWrongBytes(t *testing.T) {
	p := make([]byte, BlockBytes)
	name := t.TempDir() + "/data"
	if err := writeFile(name, 2*BlockBytes); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.ReadAt(p, BlockBytes); err != nil || !isBlock(p, BlockBytes) || isBlock(p, 0) {
		t.Errorf("a block that was written: %v", err)
	}
	p[BlockBytes-1] ^= 1
	if isBlock(p, BlockBytes) {
		t.Error("a flipped bit is not seen")
	}
	b := &bench{rig: &rig{data: p}, o: Options{Bytes: BlockBytes}, blocks: []int64{1}}
	if b.verify(); b.errors != 1 {
		t.Errorf("%d errors", b.errors)
	}
}

// TestKinds: what a turn wrote is what is read back, of both sizes; a byte that was
// changed in between, or that an earlier turn had written, is an error.
func TestKinds(t *testing.T) {
	if race.On {
		t.Skip("the race detector makes system calls")
	}
	const bytes = 4 << 20
	o, err := Options{Dir: t.TempDir(), Depth: 8, Bytes: bytes, Engine: gio.EngineUser, Log: os.Stderr}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	name := o.Dir + "/data"
	if err := writeFile(name, 2*bytes); err != nil {
		t.Fatal(err)
	}
	k := &kinds{bytes: bytes}
	if k.rig, err = openRig(o, name, os.O_RDWR, iocbs, 16); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := k.close(); err != nil {
			t.Error(err)
		}
	}()
	for _, size := range []int64{BlockBytes, SmallBytes} {
		for _, op := range []gio.Op{gio.Read, gio.Write} {
			k.errors = 0
			b := k.draw(op, size, bytes/4, 0)
			if took, err := k.move(t.Context(), b); err != nil || took <= 0 {
				t.Fatalf("%v, %v", took, err)
			}
			if err := k.verify(t.Context(), b); err != nil || k.errors != 0 {
				t.Errorf("operation %d, commands of %d bytes: %d errors, %v", op, size, k.errors, err)
			}
			if op == gio.Read {
				k.data[size] ^= 1
			} else if _, err := k.file.WriteAt(alignedPage(t), b.blocks[1]*size); err != nil {
				t.Fatal(err)
			}
			if err := k.verify(t.Context(), b); err != nil || k.errors != 1 {
				t.Errorf("operation %d, commands of %d bytes, other bytes in one: %d errors, %v", op, size, k.errors, err)
			}
		}
		before := k.errors
		b := k.draw(gio.Write, size, bytes/4, 0)
		if _, err := k.move(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		k.stamp += 1 << 40 // as if that had been an earlier turn
		if err := k.verify(t.Context(), b); err != nil || k.errors != before+len(b.blocks) {
			t.Errorf("commands of %d bytes of an earlier turn: %d errors, %v", size, k.errors-before, err)
		}
	}
}

// TestRunLaunches: each count is measured in both directions, and all bytes are right.
func TestRunLaunches(t *testing.T) {
	if race.On {
		t.Skip("the race detector makes system calls")
	}
	for _, engine := range []string{"", gio.EngineUser} {
		dir := t.TempDir()
		res, err := RunLaunches(t.Context(), LaunchOptions{Dir: dir, Size: 8192, Transfers: 3, Most: 4, Rounds: 2, Engine: engine, Log: os.Stderr})
		if err != nil {
			t.Fatal(err)
		}
		if res.Errors != 0 || res.Engine == "" || len(res.Read) != 3 || len(res.Write) != 3 {
			t.Errorf("%+v", res)
		}
		for i, l := range append(res.Read, res.Write...) {
			if l.IOCBs != 1<<(i%3) || l.Least <= 0 || l.Time < l.Least || l.Most < l.Time {
				t.Errorf("launch %d: %+v", i, l)
			}
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
	for _, o := range []LaunchOptions{{}, {Dir: "x", Size: 5000}, {Dir: "x", Most: 3}, {Dir: "x", Most: 1}, {Dir: "x", Transfers: 4096}, {Dir: "x", Size: 1 << 20, Most: 64}, {Dir: "x", Rounds: -1}} {
		if _, err := RunLaunches(t.Context(), o); !errors.Is(err, kit.ErrBadOption) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// alignedPage is a page of zeros that can be written past the page cache.
func alignedPage(t *testing.T) []byte {
	t.Helper()
	p, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(p) })
	return p
}

func TestBadOptions(t *testing.T) {
	for _, o := range []Options{{}, {Dir: "x", Depth: 3}, {Dir: "x", Depth: 4098}, {Dir: "x", Bytes: 3 * BlockBytes}, {Dir: "x", Bytes: 1 << 30}, {Dir: "x", Rounds: -1}} {
		if _, err := Run(t.Context(), o); !errors.Is(err, kit.ErrBadOption) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestDeviceDies: a device that ends is reported, at once.
func TestDeviceDies(t *testing.T) {
	_, err := Run(t.Context(), Options{Dir: t.TempDir(), Rounds: 1, Depth: 2, Bytes: 256 << 10, Engine: gio.EngineUser, Device: []string{"/bin/false"}})
	if err == nil {
		t.Error("nobody noticed")
	}
}

// pausedVerb is for a process that pauses its device, says which process that is,
// and waits to be killed.
const pausedVerb = "gio-paused"

func paused(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	s, err := gio.Serve(gio.Options{Depth: 1, NumIOCTX: 1, Files: []*os.File{f}, DataBytes: 4096, Engine: gio.EngineUser})
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	d, err := startDevice(s, Options{Device: []string{self, DeviceVerb}, Log: os.Stderr})
	if err == nil {
		err = d.pause()
	}
	if err != nil {
		return err
	}
	fmt.Println(d.os.Pid)
	select {}
}

// TestKilledWhilePaused: a device that is stopped ends with a benchmark that is
// killed.
func TestKilledWhilePaused(t *testing.T) {
	name := t.TempDir() + "/data"
	if err := os.WriteFile(name, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], pausedVerb, name)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL} // no shell continues what is stopped
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	_, err = fmt.Fscan(out, &pid)
	_, _ = cmd.Process.Kill(), cmd.Wait() // it ends by that
	if err != nil {
		t.Fatal(err)
	}
	for wait := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil || strings.Contains(string(status), "State:\tZ") {
			return
		}
		if time.Now().After(wait) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("the device is still there:\n%s", status)
		}
	}
}
