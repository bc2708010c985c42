package gio

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"cascadekv/internal/testing/race"
	"cascadekv/internal/testing/testneed"
)

// sites is how many accesses of gio.h have an order that matters.
const sites = 10

// TestOrder: ThreadSanitizer finds nothing in host, device and engine of gio.h
// and a race when any one access lost its order.
func TestOrder(t *testing.T) {
	program := build(t, "tsan.c", "-g", "-O1", "-fsanitize=thread")
	if out, err := sanitized(program); err != nil {
		if strings.Contains(out, "unexpected memory mapping") {
			t.Skip("ThreadSanitizer does not run on this kernel: " + out)
		}
		t.Fatalf("%v: %s", err, out)
	}
	for site := 1; site <= sites; site++ {
		if testing.Short() && site > 5 { // the device's own come first
			break
		}
		out, err := sanitized(build(t, "tsan.c", "-g", "-O1", "-fsanitize=thread", "-DGIO_WEAKEN="+strconv.Itoa(site)))
		if err == nil || !strings.Contains(out, "WARNING: ThreadSanitizer: data race") {
			t.Errorf("site %d without its order: nobody notices: %v: %s", site, err, out)
		}
	}
}

func sanitized(program string) (string, error) {
	cmd := exec.Command("timeout", "100", program)
	cmd.Env = append(os.Environ(), "TSAN_OPTIONS=halt_on_error=1")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestSealedDevice: a thread, in a process of its own, that would be killed by
// its first system call drives all I/Os of a server, in Go and in C.
func TestSealedDevice(t *testing.T) {
	if race.On {
		t.Skip("the race detector makes system calls")
	}
	bothEngines(t, func(t *testing.T, engine string) {
		for _, language := range []string{"Go", "C"} {
			t.Run(language, func(t *testing.T) { sealedDevice(t, engine, language) })
		}
	})
}

func sealedDevice(t *testing.T, engine, language string) {
	s, err := Serve(Options{Depth: 3, Device: small, Files: []*os.File{testFile(t, os.O_RDONLY)}, DataBytes: dataBytes, Engine: engine})
	if err != nil {
		t.Fatal(err)
	}
	q := s.Queue()
	defer func() {
		if err := q.Close(); err != nil {
			t.Error(err)
		}
		closeServer(t, s)
	}()
	cmd := startDevice(t, s, language)
	got := get(t, q, 3, &Event{1, 1})
	for round := range 20 {
		clear(q.Data())
		q.Word(1).Store(0)
		var ids []uint32
		for k, b := range got {
			fill(b, round+k, 16, Read)
			ids = append(ids, b.ID)
		}
		issue(t, q, round%3, ids...)
		q.Word(1).Store(1)
		for _, b := range got {
			if err := q.WaitCQE(bound(t), b.ID); err != nil {
				t.Fatal(err)
			}
			checkData(t, q, b, 16)
		}
	}
	q.StopDevice()
	if err := cmd.Wait(); err != nil {
		t.Errorf("the device's process: %v", err)
	}
	if q.r.h.device.Load() != deviceEnded {
		t.Error("the device did not report its end")
	}
}

// startDevice starts a process as the device of a region.
func startDevice(t *testing.T, s *Server, language string, args ...string) *exec.Cmd {
	t.Helper()
	f, err := s.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if language == "Go" {
		cmd, _ := start(t, "device", f)
		return cmd
	}
	cmd := exec.Command(build(t, "device.c"), args...)
	cmd.ExtraFiles = []*os.File{f}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// TestSealHolds: the first system call of a sealed device kills its process.
func TestSealHolds(t *testing.T) {
	testneed.Program(t, "gcc", "apt-get install gcc")
	s, err := Serve(Options{Depth: 1, NumIOCTX: 1, Files: []*os.File{testFile(t, os.O_RDONLY)}, DataBytes: dataBytes, Engine: EngineUser})
	if err != nil {
		t.Fatal(err)
	}
	defer closeServer(t, s)
	err = startDevice(t, s, "C", "x").Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGSYS {
		t.Errorf("a system call of a sealed device: %v", err)
	}
}
