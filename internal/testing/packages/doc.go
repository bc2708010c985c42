// Package packages tests what make package makes, by installing it: the DEB and the
// RPM in a Debian of their own, the tarball in a folder, by EasyBuild and as a
// module of Lmod. In each of them a rank runs, stores a block and ends.
//
// scripts/test-package makes the packages and what they are installed into, and
// runs these tests; without it they skip.
//
// The package does not test what the programs do, and starts no systemd.
package packages
