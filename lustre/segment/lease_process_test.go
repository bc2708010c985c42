package segment

import (
	"bufio"
	"os"
	"os/exec"
	"testing"

	"cascadekv/lustre/segment/lease"
)

const rankDirVar = "SEGMENT_TEST_RANK_DIR"

// TestRankProcess is the process that TestKilledRank starts and kills.
func TestRankProcess(t *testing.T) {
	dir := os.Getenv(rankDirVar)
	if dir == "" {
		t.Skip("only as a process of TestKilledRank")
	}
	o := testOptions(dir, 1)
	o.Process, o.Now = lease.Process{}, nil
	s := openStore(t, o)
	put(t, s, testItem(1, 9000, testName("a", 1)))
	put(t, s, testItem(2, 9000)) // which tells that the first one is durable
	os.Stdout.WriteString("ready\n")
	bufio.NewReader(os.Stdin).ReadString('\n') // for good
}

// TestKilledRank: the second of two processes with one rank number sees the
// first alive at once, and owns what it left as soon as it was killed.
func TestKilledRank(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestRankProcess$")
	cmd.Env = append(os.Environ(), rankDirVar+"="+dir)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		cmd.Process.Kill()
		t.Fatalf("the rank says %q, %v", line, err)
	}
	o := testOptions(dir, 2)
	o.Process, o.Now = lease.Process{}, nil
	s := openStore(t, o)
	it := testItem(1, 9000)
	wantBytes(t, s, it)
	if own, _ := adopt(t, s, 1); own != 0 || s.Store.blocks[it.Info.ID].file.own {
		t.Error("taken over from a process that runs")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait() // it was killed
	if own, _ := adopt(t, s, 1); own != 2 || !s.Store.blocks[it.Info.ID].file.own {
		t.Error("not taken over from a process that was killed")
	}
	wantBytes(t, s, it)
}
