package shmindex

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// dies is a process that makes a table, tells its descriptor and ends as it is
// told.
func dies(how string) {
	table, err := New(Options{Names: 1})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println("table", table.fd)
	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	if how == "exec" {
		err = unix.Exec("/bin/sleep", []string{"sleep", "60"}, nil)
		fmt.Println("error", err, line)
	}
	select {}
}

// TestTheKernelTells: a table whose process is killed, or has become another
// program in place, is not alive, before that process has closed any file.
func TestTheKernelTells(t *testing.T) {
	for _, how := range []string{"kill", "exec"} {
		t.Run(how, func(t *testing.T) {
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			child := exec.Command(exe)
			child.Env = append(os.Environ(), "SHMINDEX_TEST_DIES="+how)
			in, err := child.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := child.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = child.Process.Kill()
				_ = child.Wait()
			}()
			line, err := bufio.NewReader(out).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			number, ok := strings.CutPrefix(strings.TrimSpace(line), "table ")
			if !ok {
				t.Fatal(line)
			}
			file, err := os.Open(fmt.Sprintf("/proc/%d/fd/%s", child.Process.Pid, number))
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			r, err := OpenReader(int(file.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if !r.Alive() {
				t.Fatal("dead before its time")
			}
			if how == "kill" {
				if err := child.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				_, _ = child.Process.Wait()
			} else {
				fmt.Fprintln(in, "go")
				for deadline := time.Now().Add(20 * time.Second); !becameSleep(child.Process.Pid); time.Sleep(time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatal("it did not become another program")
					}
				}
			}
			if r.Alive() {
				t.Error("alive after its process")
			}
		})
	}
}

func becameSleep(pid int) bool {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return err == nil && strings.TrimSpace(string(name)) == "sleep"
}
