package config

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
)

const maxPassword = 512

// Password reads the secret that clients must send with AUTH; "" when no
// password_file is set. The file must belong to the reader alone. The secret
// appears in no error and must not be logged.
func (c *Config) Password() (string, error) {
	if c.PasswordFile == "" {
		return "", nil
	}
	bad := func(problem, remedy string) error {
		return &ValueError{Origin: "password", Key: "password_file", Value: quote(c.PasswordFile), Problem: problem, Remedy: remedy}
	}
	f, err := os.Open(c.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("config: password_file: %w; create it with mode 0600", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("config: password_file: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", bad(fmt.Sprintf("mode %#o lets others read it", info.Mode().Perm()), "chmod 600 "+c.PasswordFile)
	}
	line, err := bufio.NewReader(io.LimitReader(f, maxPassword+2)).ReadString('\n')
	if err != nil && err != io.EOF {
		return "", fmt.Errorf("config: password_file: %w", err)
	}
	line = strings.TrimRight(line, "\r\n")
	if line == "" || len(line) > maxPassword {
		return "", bad("first line is empty or too long", fmt.Sprintf("put a password of 1 to %d bytes there", maxPassword))
	}
	return line, nil
}
