package fabricbench

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"cascadekv/dht/fabric"
	"cascadekv/dht/fabric/tcp"
)

// Roles of a rank that no mpirun starts.
const (
	TCP      = "tcp"       // rank 0, which starts rank 1
	TCPOther = "tcp-other" // rank 1
)

// secretVariable carries the secret of both ranks, which is worth nothing to others.
const secretVariable = "CASCADE_BENCH_SECRET"

// RankTCP is one rank of the benchmark over TCP, on loopback or where o says: see Run
// and RunNetwork. role is TCP or TCPOther.
func RankTCP(ctx context.Context, role string, o RankOptions) error {
	if role == TCPOther {
		return tcpOther(ctx, o)
	}
	secret := hex.EncodeToString(fmt.Appendf(nil, "%016x", rand.Uint64()))
	f, err := tcpFabric(0, o.Listen, secret)
	if err != nil {
		return err
	}
	own, err := os.Executable()
	if err != nil {
		return err
	}
	line := []string{own, RankVerb, o.Folder, strconv.FormatInt(o.Bytes, 10), TCPOther}
	if o.OtherNetns != "" {
		line = append(append([]string{"ip", "netns", "exec", o.OtherNetns}, line...), o.OtherListen)
	}
	other := exec.CommandContext(ctx, line[0], line[1:]...)
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
		err = runRank(ctx, f, o)
	}
	return errors.Join(err, in.Close(), f.Close(), other.Wait())
}

// tcpOther serves until rank 0 quits or ends.
func tcpOther(ctx context.Context, o RankOptions) error {
	f, err := tcpFabric(1, o.Listen, os.Getenv(secretVariable))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, o.In) // however it ends
		cancel()
	}()
	fmt.Fprintln(o.Out, f.Addr())
	err = runRank(ctx, f, o)
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

// tcpFabric listens at an address, loopback by default.
func tcpFabric(self fabric.Rank, host, secret string) (*tcp.Fabric, error) {
	if host == "" {
		host = "127.0.0.1"
	}
	return tcp.New(tcp.Options{Self: self, Incarnation: 1, Listen: net.JoinHostPort(host, "0"), Job: "bench", Secret: []byte(secret)})
}
