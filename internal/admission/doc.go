// Package admission decides who may use a server, and how much of what clients
// share each may take.
//
// Glossary
//
//	unauthenticated  said of a connection whose client has given no password yet
//
// It finds the user at the other end of a connection (SO_PEERCRED, sock_diag), slows
// down those who try passwords, and picks which unauthenticated connections end when
// there are too many. The package does not accept, read or close connections, and
// stores no password.
package admission
