package giobench

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/gpu/gio"
	"cascadekv/internal/testing/race"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == DeviceVerb {
		fmt.Fprintln(os.Stderr, Device())
		os.Exit(1)
	}
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
		if res.Errors != 0 || rounds != 2 || res.Gio.MBps <= 0 || res.Pool.MBps <= 0 || engine != "" && res.Engine != engine {
			t.Errorf("%s", text)
		}
		if (res.RatioFio == nil) != (res.Why != "") || res.RatioFio != nil && (*res.RatioFio <= 0 || len(res.Ratios) != 2) {
			t.Errorf("fio: %s", text)
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
	b := &bench{o: Options{Bytes: BlockBytes}, data: p, blocks: []int64{1}}
	if b.verify(); b.errors != 1 {
		t.Errorf("%d errors", b.errors)
	}
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
