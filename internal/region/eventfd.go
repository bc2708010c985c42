package region

import (
	"errors"
	"fmt"
	"os"
	"strconv"
)

var errNoEventfd = errors.New("the descriptor of NOTIFY is not an eventfd")

// CheckEventfd returns an error unless a descriptor that came with a region is an eventfd.
func CheckEventfd(fd int) error {
	is, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return fmt.Errorf("descriptor of NOTIFY: %w", err)
	}
	if is != "anon_inode:[eventfd]" {
		return errNoEventfd
	}
	return nil
}
