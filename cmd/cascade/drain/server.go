package drain

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"cascadekv/internal/resp"
)

// server returns a descriptor of the process that serves a unix socket.
func server(socket string, uids []int) (fd int, err error) {
	pid, err := serverPID(socket, uids)
	if err != nil {
		return -1, err
	}
	if fd, err = unix.PidfdOpen(pid, 0); err != nil {
		return -1, fmt.Errorf("process %d: %w", pid, err)
	}
	// Whoever serves the socket still has that number: so it is the descriptor's process.
	again, err := serverPID(socket, uids)
	if err == nil && again != pid {
		err = errors.New("another process serves " + socket + " now")
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

func serverPID(socket string, uids []int) (int, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := resp.CheckServer(conn, uids...); err != nil {
		return 0, err
	}
	cred, err := resp.ServerCred(conn.(*net.UnixConn))
	if err != nil {
		return 0, fmt.Errorf("who serves %s: %w", socket, err)
	}
	if cred.Pid == 0 {
		return 0, fmt.Errorf("who serves %s is in another container: send it SIGTERM there", socket)
	}
	return int(cred.Pid), nil
}
