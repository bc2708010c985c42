package bench

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"cascadekv/dht/fabric"
	"cascadekv/dht/fabric/tcp"
)

// Roles of a rank that no mpirun starts.
const (
	FabricTCP      = "tcp"       // rank 0, which starts rank 1
	FabricTCPOther = "tcp-other" // rank 1
)

// secretVariable carries what both ranks know; it is worth nothing to others.
const secretVariable = "CASCADE_BENCH_SECRET"

// FabricRankTCP is one rank of the benchmark over TCP on loopback: see Fabric.
// role is FabricTCP or FabricTCPOther.
func FabricRankTCP(ctx context.Context, role string, o FabricRankOptions) error {
	if role == FabricTCPOther {
		return tcpOther(ctx, o)
	}
	secret := hex.EncodeToString(fmt.Appendf(nil, "%016x", rand.Uint64()))
	f, err := tcpFabric(0, secret)
	if err != nil {
		return err
	}
	own, err := os.Executable()
	if err != nil {
		return err
	}
	other := exec.CommandContext(ctx, own, "bench", FabricRankVerb, o.Folder, strconv.FormatInt(o.Bytes, 10), FabricTCPOther)
	other.Env = append(os.Environ(), secretVariable+"="+secret)
	other.Stderr = os.Stderr
	in, err := other.StdinPipe() // whose end ends the other rank with this one
	if err != nil {
		return err
	}
	out, err := other.StdoutPipe()
	if err != nil {
		return err
	}
	if err := other.Start(); err != nil {
		return err
	}
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		f.SetPeer(fabric.Peer{Rank: 1, Incarnation: 1, Addr: strings.TrimSpace(addr)})
		err = runFabricRank(ctx, f, o)
	}
	return errors.Join(err, in.Close(), f.Close(), other.Wait())
}

// tcpOther serves until it is told to quit, or rank 0 is no more.
func tcpOther(ctx context.Context, o FabricRankOptions) error {
	f, err := tcpFabric(1, os.Getenv(secretVariable))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, o.In) // however it ends
		cancel()
	}()
	fmt.Fprintln(o.Out, f.Addr())
	err = runFabricRank(ctx, f, o)
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

func tcpFabric(self fabric.Rank, secret string) (*tcp.Fabric, error) {
	return tcp.New(tcp.Options{Self: self, Incarnation: 1, Listen: "127.0.0.1:0", Job: "bench", Secret: []byte(secret)})
}

// buildLoopKit is the kit without MPI: this program, and bench/c/loop.c.
func buildLoopKit(ctx context.Context, o FabricOptions) (*fabricKit, error) {
	src, out, err := fabricFolders(o.MPI)
	if err != nil {
		return nil, err
	}
	rank, err := os.Executable()
	if err != nil {
		return nil, err
	}
	loop := filepath.Join(out, "loop")
	if err := runBuild(ctx, src, o.Log, []string{"cc", "-O2", "-o", loop, "bench/c/loop.c"}); err != nil {
		return nil, err
	}
	memory, err := os.MkdirTemp("/dev/shm", "cascade-bench-")
	if err != nil {
		return nil, err
	}
	bytes := strconv.Itoa(fabricMemory)
	return &fabricKit{
		ours:   []string{rank, "bench", FabricRankVerb, memory, bytes, FabricTCP},
		theirs: []string{loop, memory, bytes},
		mode:   "stream", log: o.Log, memory: memory,
	}, nil
}
