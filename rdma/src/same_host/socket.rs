//! A datagram socket of this host that carries open files.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    bind, recvmsg, sendmsg_addr, socket_with,
};

/// Most files in one datagram.
pub(super) const FILES_MAX: usize = 32;

/// What a socket is called. Names are known in one network namespace: as a rule, on one host.
pub(super) type Name = [u8; 16];

pub(super) struct FileSocket(OwnedFd);

impl FileSocket {
    /// One that sends.
    ///
    /// # Errors
    /// The process is out of file descriptors.
    pub(super) fn new() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(Self(socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?))
    }

    /// One that receives.
    ///
    /// # Errors
    /// As [`FileSocket::new`], or the name is taken.
    pub(super) fn bound(name: &Name) -> io::Result<Self> {
        let socket = Self::new()?;
        bind(&socket.0, &address(name)?)?;
        Ok(socket)
    }

    /// Sends a datagram with these files, at most [`FILES_MAX`], to the socket of this name. Never blocks.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] while the receiver's queue is full; any other: there is no such socket here.
    pub(super) fn send(&self, to: &Name, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let has_room = files.is_empty() || control.push(SendAncillaryMessage::ScmRights(files));
        assert!(has_room, "{} files in one datagram", files.len());
        let slices = [IoSlice::new(bytes)];
        sendmsg_addr(&self.0, &address(to)?, &slices, &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// The next datagram: how many bytes it has, and its files. One that is longer than `bytes`, or has more files
    /// than [`FILES_MAX`], comes as an empty one without any.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is none.
    pub(super) fn receive(&self, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(bytes)];
        let got = recvmsg(&self.0, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let files = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        let files: Vec<_> = files.flatten().collect();
        let is_whole = !got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
        Ok(if is_whole { (got.bytes, files) } else { (0, Vec::new()) })
    }
}

impl AsFd for FileSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn address(name: &Name) -> io::Result<SocketAddrUnix> {
    let digits = format!("baton-{:032x}", u128::from_be_bytes(*name));
    Ok(SocketAddrUnix::new_abstract_name(digits.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;

    #[test]
    fn files_arrive_with_their_datagram_and_in_order() {
        let name = [7; 16];
        let (receiver, sender) = (FileSocket::bound(&name).unwrap(), FileSocket::new().unwrap());
        let files = ["/proc/self/comm", "/proc/self/cmdline"].map(|path| File::open(path).unwrap());
        sender.send(&name, b"two", &[files[0].as_fd(), files[1].as_fd()]).unwrap();
        sender.send(&name, b"none", &[]).unwrap();
        let mut bytes = [0; 8];
        let (len, got) = receiver.receive(&mut bytes).unwrap();
        assert_eq!((&bytes[..len], got.len()), (&b"two"[..], 2));
        let mut text = Vec::new();
        File::from(got.into_iter().nth(1).unwrap()).read_to_end(&mut text).unwrap();
        assert!(text.contains(&0), "the command line, and not the name");
        let (len, got) = receiver.receive(&mut bytes).unwrap();
        assert_eq!((&bytes[..len], got.len()), (&b"none"[..], 0));
        assert_eq!(receiver.receive(&mut bytes).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn what_is_too_long_comes_without_its_files() {
        let name = [8; 16];
        let (receiver, sender) = (FileSocket::bound(&name).unwrap(), FileSocket::new().unwrap());
        let file = File::open("/proc/self/comm").unwrap();
        sender.send(&name, b"longer than four", &[file.as_fd()]).unwrap();
        let (len, files) = receiver.receive(&mut [0; 4]).unwrap();
        assert_eq!((len, files.len()), (0, 0));
    }

    #[test]
    fn a_full_queue_and_no_socket_are_told_apart() {
        let name = [9; 16];
        let sender = FileSocket::new().unwrap();
        assert_ne!(sender.send(&name, b"x", &[]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let _receiver = FileSocket::bound(&name).unwrap();
        let full = (0..100_000).find_map(|_| sender.send(&name, b"x", &[]).err());
        assert_eq!(full.unwrap().kind(), io::ErrorKind::WouldBlock);
    }
}
