//! Waits until a moment. The runtime's own timers count milliseconds, which would make every arrival late.

use std::io;

use baton_core::Nanos;
use rustix::fd::OwnedFd;
use rustix::io::read;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

pub(super) struct Timer(AsyncFd<OwnedFd>);

impl Timer {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[expect(
            deprecated,
            reason = "an `OwnedFd` of ours is not closed before it is dropped; `register` is unsafe"
        )]
        let fd = AsyncFd::new(fd)?;
        Ok(Self(fd))
    }

    /// Waits for this span.
    pub(super) async fn wait(&self, span: Nanos) -> io::Result<()> {
        // Zero would switch it off.
        let span = span.max(Nanos(1));
        let seconds = (span.0 / 1_000_000_000).try_into().unwrap_or(i64::MAX);
        let it_value =
            Timespec { tv_sec: seconds, tv_nsec: (span.0 % 1_000_000_000).cast_signed() };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval, it_value };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &spec)?;
        loop {
            let mut ready = self.0.readable().await?;
            let expired = ready.try_io(|fd| Ok(read(fd.get_ref(), &mut [0u8; 8])?));
            if let Ok(expired) = expired {
                return expired.map(|_| ());
            }
        }
    }
}
