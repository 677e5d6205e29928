#!/bin/sh
# Makes a certificate authority and a certificate for each member of a cluster:
#
#     examples/certs.sh certs scheduler.example gpu-1.example web.example
#
# writes certs/ca.pem and, for every name, certs/NAME.pem and certs/NAME.key. Called again with other
# names it issues those too. ca.key signs whatever it is given: keep it off the members.
set -eu

days=${BATON_CERT_DAYS:-365}
if [ $# -lt 2 ]; then
    echo "usage: $0 FOLDER NAME..." >&2
    exit 2
fi
folder=$1
shift
umask 077
mkdir -p "$folder"

key() {
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2>/dev/null
}

if [ ! -e "$folder/ca.key" ]; then
    key "$folder/ca.key"
    openssl req -x509 -new -key "$folder/ca.key" -days 3650 -subj "/CN=Baton cluster authority" \
        -addext "basicConstraints=critical,CA:TRUE" \
        -addext "keyUsage=critical,keyCertSign,cRLSign" -out "$folder/ca.pem"
fi

# Members connect and are connected to, with one certificate for both.
for name in "$@"; do
    key "$folder/$name.key"
    cat >"$folder/$name.ext" <<EXT
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth,clientAuth
subjectAltName=DNS:$name
EXT
    openssl req -new -key "$folder/$name.key" -subj "/CN=$name" |
        openssl x509 -req -CA "$folder/ca.pem" -CAkey "$folder/ca.key" -CAcreateserial -days "$days" \
            -extfile "$folder/$name.ext" -out "$folder/$name.pem" 2>/dev/null
    rm "$folder/$name.ext"
    echo "$folder/$name.pem"
done
chmod a+r "$folder/ca.pem"
