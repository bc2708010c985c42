package e2e

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// helperVariable, when set, makes this program say PING to the address in it
// ("network address") and print the answer: a client that another user can run.
const helperVariable = "CASCADE_E2E_PING"

func helper() int {
	network, addr, _ := strings.Cut(os.Getenv(helperVariable), " ")
	c, err := net.DialTimeout(network, addr, patience)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	// A refusal may close the connection before this arrives; the answer tells.
	_, _ = io.WriteString(c, "PING\r\n")
	answer := make([]byte, 256)
	n, err := c.Read(answer)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Print(string(answer[:n]))
	return 0
}

// pingAs says PING as another user and returns the answer, or the error.
func pingAs(t *testing.T, uid uint32, network, addr string) string {
	t.Helper()
	// The link leads to this program even where the user can not see its folder.
	cmd := exec.Command("/proc/self/exe")
	cmd.Dir = "/"
	cmd.Env = append(cleanEnv(), helperVariable+"="+network+" "+addr)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	if len(out) == 0 {
		t.Fatal(err)
	}
	return string(out)
}
