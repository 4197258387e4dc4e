"""The printed words: common ones to learn, others that only the evaluation shows."""

from __future__ import annotations

TRAINED = """
able act add age air all and any apple arm art ask away baby back bad bag ball bank base bath bear beat bed bell best
big bird bit blow body bone book born boss both bowl box boy bring bus busy buy cake call calm camp can car card care
case cat chair chat city clay clean clear clock coat code cold come cook cool copy corn cost cow cup cut dark data day
deal deep desk diet dirt dog door down draw dress drop dry dust each ear early earth east easy egg end even exit face
fact fair fall farm fast fat father fear feel few field file fill film find fine fire first fit five flag flat floor
flow fly fog food foot form fox free friend frog from fruit full fun game gate gift girl give go goat gold good grass
great group grow hair half hall hat head hear heat hello help here hide high hill hold home hook hope hot hour idea
inch iron item jar job join joke joy judge jump just keep key kick kind king knee knife know lake lamp land large last
late lead leaf left leg less letter level lift light like line lion list little live long look lord lost lot love low
lunch mail main man map mark mat meal meat meet menu milk mind mine miss mix model moment money month more most mouse
move much must nail name near neck need nest net new next nice night nine nose note oak odd off oil one open oval owl
own page paint pair paper park part pass path pay pen phone pick pie pin place plan plate play point pool poor post pot
press print push quick quiet race radio rain read ready rest rice rich ride ring road rock roof room rope rose round
rule run safe sail salt same sand save school sea seat see seed sell send ship shirt shoe shop short show sick side
sign sing sit six size skin sky sleep slow small smile snow soap sock soft song soup south speak spoon sport spring
stand start stay step stone stop storm street strong sugar sun swim table take talk tall task tea team tell ten tent
test text thank thin think three ticket tie time tiny toe top town toy train tree trip truck true turn two under up
use van very view visit voice wait walk wall want warm wash watch wave way wear week well west what wheel when white
who why wide wife wild win wind wing wish with wood word work world write yard year yes you young zero zoo
""".split()

_OTHERS = """
bread bridge butter candle cloud coffee dance doctor dream duck eagle engine fish flower garden glass green hand honey
horse house ice island jacket juice kitchen ladder lemon market metal mirror moon mother number ocean orange pencil
piano planet pocket queen quiz river robot rocket salad shadow silver snake star summer sweet tiger tower train user
valley water window winter yellow zebra
""".split()

HELD_OUT = sorted(set(_OTHERS) - set(TRAINED))
